"""Bootstrap intervals over prompts: of AccLen, alone and paired, of speedups and of mean scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiger.decoding.records import Generation

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

WEIGHTS_AT_ONCE = 1 << 22  # of the resamples times prompts


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its confidence interval."""

    value: float
    low: float
    high: float


def acceptance_counts(generations: Sequence[Generation]) -> Counts:
    """Accepted tokens and rounds [P, 2] of each prompt."""
    counts = [(sum(r.accepted for r in g.rounds), len(g.rounds)) for g in generations]
    return np.array(counts, dtype=np.int64).reshape(-1, 2)


def acclen_interval(
    counts: Counts, resamples: int = 10_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    r"""AccLen with its percentile bootstrap interval.

    Rounds of one prompt depend on each other, so whole prompts are resampled, and
    AccLen = \sum_p accepted_p / \sum_p rounds_p over the resampled prompts p.

    Args:
        counts: Accepted tokens and rounds [P, 2].
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.
        confidence: Probability mass inside the interval.

    Raises:
        ValueError: If there is no prompt.
    """
    chunks = [_acclen(weights @ counts) for weights in _weights(len(counts), resamples, seed)]
    return _interval(float(_acclen(counts.sum(0))), chunks, confidence)


def paired_difference(
    left: Counts, right: Counts, resamples: int = 10_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """AccLen(left) - AccLen(right) with its interval; both are resampled with the same prompts.

    Args:
        left: Accepted tokens and rounds [P, 2] of one decoder.
        right: Those of another decoder on the same prompts in the same order.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.
        confidence: Probability mass inside the interval.

    Raises:
        ValueError: If there is no prompt or the numbers of prompts differ.
    """
    if len(left) != len(right):
        raise ValueError(f"Paired decoders need the same prompts; got {len(left)} and {len(right)} of them.")
    value = float(_acclen(left.sum(0)) - _acclen(right.sum(0)))
    draws = _weights(len(left), resamples, seed)
    return _interval(value, [_acclen(w @ left) - _acclen(w @ right) for w in draws], confidence)


def speedup_interval(
    own: Values, baseline: Values, resamples: int = 10_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """Tokens per second over those of a baseline with its interval; both are resampled with the same groups.

    Args:
        own: Tokens and seconds [P, 2] of each group of prompts.
        baseline: Those of the baseline on the same groups in the same order.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.
        confidence: Probability mass inside the interval.

    Raises:
        ValueError: If there is no group or the numbers of groups differ.
    """
    if len(own) != len(baseline):
        raise ValueError(f"A speedup needs the same groups; got {len(own)} and {len(baseline)} of them.")
    draws = _weights(len(own), resamples, seed)
    chunks = [_speed(weights @ own) / _speed(weights @ baseline) for weights in draws]
    return _interval(float(_speed(own.sum(0)) / _speed(baseline.sum(0))), chunks, confidence)


def mean_interval(
    points: Sequence[float], resamples: int = 10_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """The mean of one value per prompt with its percentile bootstrap interval.

    Args:
        points: One value per prompt.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.
        confidence: Probability mass inside the interval.

    Raises:
        ValueError: If there is no prompt.
    """
    values = np.array(points, dtype=np.float64)
    chunks = [weights @ values / len(values) for weights in _weights(len(values), resamples, seed)]
    return _interval(float(values.mean()), chunks, confidence)


def _weights(prompts: int, resamples: int, seed: int) -> Iterator[Counts]:
    """How often each prompt is drawn in each resample [resamples, P], in chunks of rows."""
    if prompts == 0:
        raise ValueError("There is no prompt to resample; decode one or more.")
    generator = np.random.default_rng(seed)
    rows = max(WEIGHTS_AT_ONCE // prompts, 1)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        yield generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=size)


def _acclen(counts: Counts) -> Values:
    """AccLen [...] of summed counts [..., 2]; 0 without rounds."""
    quotient: Values = counts[..., 0] / np.maximum(counts[..., 1], 1)
    return quotient


def _speed(sums: Values) -> Values:
    """Tokens per second [...] of summed tokens and seconds [..., 2]."""
    quotient: Values = sums[..., 0] / sums[..., 1]
    return quotient


def _interval(value: float, resampled: Sequence[Values], confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(resampled), [tail, 1 - tail])
    return Interval(value, float(low), float(high))
