"""The entries of `metrics.json`: what is accepted, how well it scores, how fast and how exact it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from data_modules.evaluation import TaskSet
from tiger.decoding.records import Generation
from tiger.evaluation.bootstrap import (
    acceptance_counts,
    acclen_interval,
    mean_interval,
    paired_difference,
    speedup_interval,
)
from tiger.evaluation.cost_model import BASELINE
from tiger.evaluation.decoders import Decoders
from tiger.evaluation.exactness import differing, split_ties
from tiger.evaluation.timing import Timing
from tiger.metrics.acceptance import AcceptanceMetrics

COMPARISONS = (("kd", "vanilla"), ("tiger", "kd"), ("tiger", "kd_continued"))
FEWEST_GROUPS = 4  # of prompts that an interval of a speedup is drawn from
GIB = 1 << 30


def acceptance(answers: Sequence[Generation], seed: int, is_pruned: bool = False) -> dict[str, Any]:
    """The entries that come from round records; infinite ones become null, for pruners all but counts.

    Args:
        answers: Answers to all samples.
        seed: Seed of the bootstrap.
        is_pruned: Whether a pruned verifier answered, which drafts nothing.
    """
    block = max((r.depth for answer in answers for r in answer.rounds), default=1) or 1
    metric = AcceptanceMetrics(block)
    metric.update(answers)
    interval = acclen_interval(acceptance_counts(answers), seed=seed)
    result = {"num_prompts": len(answers)} | metric.compute()
    result |= {"acclen_low": interval.low, "acclen_high": interval.high}
    if is_pruned:
        counts = ("num_prompts", "answers", "answer_tokens", "rounds", "verifier_passes")
        return {k: v if k in counts else {} if isinstance(v, dict) else None for k, v in result.items()}
    return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in result.items()}


def exactness(
    answers: Sequence[Generation], reference: Sequence[Generation] | None, bench: Decoders
) -> dict[str, Any]:
    """The entries that compare greedy answers with the verifier's own; null without a reference."""
    if reference is None:
        return dict.fromkeys(("exact", "ties", "mismatches"))
    indices = differing(answers, reference)
    ties: list[str] = []
    errors: list[str] = []
    if indices:
        ties, errors = split_ties(indices, answers, reference, bench.tasks, bench.backbone)
    exact = 1 - len(indices) / len(answers)
    return {"exact": exact, "ties": ties, "mismatches": errors}


def points(answers: Sequence[Generation], tasks: TaskSet) -> list[float | None]:
    """Score of each answer; None in the style `speed`, and where only a whole set has a score."""
    if tasks.style == "speed":
        return [None] * len(answers)
    metric = tasks.metrics()[0]
    pairs = zip(answers, tasks.references, strict=True)
    return [metric.score(answer.text, reference) for answer, reference in pairs]


def scores(
    answers: Sequence[Generation], tasks: TaskSet, each: Sequence[float | None], seed: int
) -> dict[str, Any]:
    """The entries of the task's metrics; null in the style `speed`, whose answers are not scored.

    Args:
        answers: Answers to all samples.
        tasks: Their set.
        each: Score of each answer, see `points`.
        seed: Seed of the bootstrap.
    """
    if tasks.style == "speed":
        return dict.fromkeys(("metric", "score", "score_low", "score_high", "scores", "score_settings"))
    figures: dict[str, float] = {}
    settings: dict[str, dict[str, str]] = {}
    texts, metrics = [answer.text for answer in answers], tasks.metrics()
    for metric in metrics:
        metric.update(texts, tasks.references)
        figures |= metric.compute()
        settings[metric.headline] = metric.settings()
    name, value = next(iter(figures.items()))
    result = {"metric": name, "score": value, "score_low": None, "score_high": None}
    known = [point for point in each if point is not None]
    if len(known) == len(each) and math.isclose(sum(known) / len(known), value, abs_tol=1e-9):
        interval = mean_interval(known, seed=seed)
        result |= {"score_low": interval.low, "score_high": interval.high}
    return result | {"scores": figures, "score_settings": settings}


def speed(timings: Mapping[str, Timing], name: str, full_token: str, seed: int = 0) -> dict[str, Any]:
    """The entries that come from timing, null where nothing was timed.

    Args:
        timings: Timing of each decoder.
        name: Name of a decoder.
        full_token: Name of the decoder whose drafter sees every visual token, if it was timed.
        seed: Seed of the bootstrap.
    """
    if not timings:
        names = ("tokens_per_second", "speedup", "speedup_low", "speedup_high", "latency_s", "first_token_s")
        more = ("other_share", "phase_ms", "latency_ar_normalized", "latency_full_token_normalized")
        return dict.fromkeys((*names, *more, "peak_memory_gib", "speed_skipped"))
    timing = timings[name]
    rounds = max(timing.rounds, 1)
    full = timings.get(full_token)
    speedup = speedup_interval(timing.work, timings[BASELINE].work, seed=seed)
    is_resampled = len(timing.work) >= FEWEST_GROUPS
    return {
        "tokens_per_second": timing.tokens_per_second,
        "speedup": speedup.value,
        "speedup_low": speedup.low if is_resampled else None,
        "speedup_high": speedup.high if is_resampled else None,
        "latency_s": timing.latency,
        "first_token_s": timing.first_token,
        "other_share": timing.other_share,
        "phase_ms": {phase: 1000 * seconds / rounds for phase, seconds in timing.phases.items()},
        "latency_ar_normalized": 1 / speedup.value,
        "latency_full_token_normalized": None if full is None else 1 / timing.speedup_over(full),
        "peak_memory_gib": timing.peak_bytes / GIB or None,
        "speed_skipped": timing.skipped,
    }


def differences(
    answers: Mapping[str, Sequence[Generation]], dataset: str, temperature: float, seed: int
) -> list[dict[str, Any]]:
    """AccLen differences of the decoders that are compared and present."""
    rows = []
    for left, right in COMPARISONS:
        if left in answers and right in answers:
            counts = acceptance_counts(answers[left]), acceptance_counts(answers[right])
            interval = paired_difference(*counts, seed=seed)
            row = {"left": left, "right": right, "dataset": dataset, "temperature": temperature}
            row |= {"num_prompts": len(counts[0]), "difference": interval.value}
            rows.append(row | {"low": interval.low, "high": interval.high})
    return rows
