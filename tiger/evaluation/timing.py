"""Wall-clock times that can be compared: the same prompts, interleaved, warmed up, medians of repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from tiger.backbones.base import Prompt
from tiger.decoding.records import PHASES, Generation

Run = Callable[[Sequence[Prompt]], list[Generation]]


@dataclass
class Timing:
    """End-to-end times of one decoder.

    Attributes:
        seconds: Median seconds of each group of prompts, prompt preparation and prefill included.
        tokens: Answer tokens of each group.
        first: Median seconds to the first token of each group.
        phases: Seconds per phase, summed over all rounds and repeats.
        rounds: Number of those rounds.
        peak_bytes: Most GPU memory in use, weights of all decoders included; 0 without a GPU.
        skipped: Why prompts were left out that a model could not read, by id.
    """

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    peak_bytes: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens of all groups over the sum of their median seconds."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def latency(self) -> float:
        """Median over groups of the median seconds of a group."""
        return statistics.median(self.seconds)

    @property
    def first_token(self) -> float:
        """Median over groups of the median seconds to the first token."""
        return statistics.median(self.first)

    @property
    def other_share(self) -> float:
        """Share of round time outside routing and model calls; 0 without rounds."""
        total = sum(self.phases.values())
        return self.phases.get("other", 0.0) / total if total else 0.0

    @property
    def work(self) -> npt.NDArray[np.float64]:
        """Tokens and median seconds [P, 2] of each group."""
        return np.array([self.tokens, self.seconds], dtype=np.float64).T

    def speedup_over(self, baseline: Timing) -> float:
        """Time per token of the baseline over time per token of this decoder.

        For equal answers (temperature 0) this is the plain ratio of times. Sampled answers differ in length,
        so that time alone would compare different work.
        """
        return self.tokens_per_second / baseline.tokens_per_second


def measure(
    runs: Mapping[str, Run], prompts: Sequence[Prompt], batch_size: int = 1, repeats: int = 3, warmup: int = 1
) -> dict[str, Timing]:
    """Times decoders on the same prompts.

    Every group of prompts is decoded by all decoders in turn before the next one, in alternating order, so
    that a change of the machine's speed hits all of them.

    Args:
        runs: Decoders by name.
        prompts: Prompts to decode.
        batch_size: Prompts of a group.
        repeats: Times that each group is decoded by each decoder.
        warmup: Untimed rounds over the first group.

    Raises:
        ValueError: If there is nothing to time.
    """
    if not prompts or repeats < 1 or batch_size < 1:
        raise ValueError(
            f"Nothing to time: {len(prompts)} prompts, {repeats} repeats, batch size {batch_size}."
        )
    groups = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
    for run in [*runs.values()] * warmup:
        run(groups[0])
    timings = {name: Timing(phases=dict.fromkeys(PHASES, 0.0)) for name in runs}
    for group in groups:
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        first: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(repeats):
            for name in list(runs)[:: -1 if repeat % 2 else 1]:
                if torch.cuda.is_available():
                    torch.cuda.reset_peak_memory_stats()
                start = time.perf_counter()
                answers = runs[name](group)
                seconds[name].append(time.perf_counter() - start)
                if torch.cuda.is_available():
                    peak = torch.cuda.max_memory_allocated()
                    timings[name].peak_bytes = max(timings[name].peak_bytes, peak)
                first[name].append(answers[0].prefill_seconds)
                _add_phases(timings[name], answers)
                if repeat == 0:
                    timings[name].tokens.append(sum(len(answer.tokens) for answer in answers))
        for name, timing in timings.items():
            timing.seconds.append(statistics.median(seconds[name]))
            timing.first.append(statistics.median(first[name]))
    return timings


def medians(runs: Mapping[str, Callable[[], object]], repeats: int = 3, warmup: int = 1) -> dict[str, float]:
    """Median seconds of functions that are called in turn, in alternating order, after untimed calls.

    Args:
        runs: Functions by name; each ends with its work done, so one that uses a GPU waits for it.
        repeats: Timed calls of each.
        warmup: Untimed calls of each.
    """
    for run in [*runs.values()] * warmup:
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in list(runs)[:: -1 if repeat % 2 else 1]:
            start = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _add_phases(timing: Timing, answers: Sequence[Generation]) -> None:
    """Adds a group's rounds; rows of a batch share their rounds, so the longest answer stands for all."""
    rounds = max((answer.rounds for answer in answers), key=len)
    timing.rounds += len(rounds)
    for record in rounds:
        for phase, spent in record.seconds.items():
            timing.phases[phase] += spent


def limit_threads(num_threads: int | None) -> None:
    """Sets torch's thread count; None leaves it alone.

    Raises:
        ValueError: If it is below one.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"num_threads is {num_threads}; use one or more, or null for torch's choice.")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
