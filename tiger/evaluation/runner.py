"""The `benchmark` verb: decoders x temperatures x batch sizes on one data split."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tiger.backbones.loading import Quantization
from tiger.decoding.records import Generation
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.routed import RoutedDrafter
from tiger.evaluation.bootstrap import acceptance_counts, acclen_interval, paired_difference
from tiger.evaluation.decoders import BASELINE, Decoders
from tiger.evaluation.prompts import load_prompts
from tiger.evaluation.samples import Journal, write_atomic
from tiger.evaluation.timing import Timing, limit_threads
from tiger.metrics.acceptance import AcceptanceMetrics
from tiger.report import tables
from tiger.report.trace_page import Trace, grids_of, write_trace_page

SHIPPED_DECODERS: dict[str, str | None] = {
    BASELINE: None,
    "vanilla": "tiny/vanilla",
    "kd": "tiny/kd",
    "kd_continued": "tiny/kd_continued",
    "tiger": "tiny/tiger",
}
COMPARISONS = (("kd", "vanilla"), ("tiger", "kd"), ("tiger", "kd_continued"))


def benchmark(
    verifier: str = "tiny/verifier",
    decoders: dict[str, str | None] = SHIPPED_DECODERS,
    dataset: str = "synthetic",
    num_prompts: int = 300,
    temperatures: Sequence[float] = (0.0, 1.0),
    batch_sizes: Sequence[int] = (1,),
    block_size: int = 8,
    block_sizes: dict[str, int] | None = None,
    max_new_tokens: int = 96,
    acceptance_batch_size: int = 8,
    speed_dataset: str | None = None,
    speed_prompts: int = 24,
    speed_repeats: int = 5,
    num_traces: int = 0,
    seed: int = 0,
    output: Path = Path("runs/benchmark"),
    num_threads: int | None = 1,
    dtype: str = "float32",
    verifier_quantization: Quantization | None = None,
) -> list[dict[str, Any]]:
    """Compares decoders: what is accepted, how fast it is, and whether the text is the verifier's own.

    Every decoder answers all prompts once per temperature in large batches, since rows do not depend on one
    another: that gives AccLen, its distribution and exactness. Speed comes from the first prompts of
    `speed_dataset`, which all decoders answer in turn at each batch size, preparation and prefill included.

    The folder receives `metrics.json` (one entry per decoder, temperature and batch size), `differences.json`
    (AccLen differences with paired bootstrap intervals), `samples.jsonl`, `timings.jsonl`, `table.csv` and
    `table.md`. A second run with the same settings reads finished parts back instead of decoding again.

    Args:
        verifier: Folder, hub id or shipped name of the verifier.
        decoders: Drafter of each decoder by name: a model, `prompt_lookup`, `token_recycling`, `racer` or a
            file of `configs/drafter`; null for autoregressive decoding, which is always included.
        dataset: `synthetic` (held-out test images), `synthetic_long` or `synthetic_validation`.
        num_prompts: Prompts for acceptance, all kinds in turn.
        temperatures: Sampling temperatures; 0 is greedy.
        batch_sizes: Batch sizes at which speed is measured.
        block_size: Tokens drafted in one round.
        block_sizes: Other block sizes by decoder, `tiger: 6`, or by decoder and temperature, `tiger@1: 4`.
        max_new_tokens: Longest answer, tokens.
        acceptance_batch_size: Batch size while acceptance is measured.
        speed_dataset: Data set of the timed prompts; null for that of acceptance. Speed is commonly measured
            on long answers: `synthetic_long` asks each test image for its longest one.
        speed_prompts: The first so many prompts are timed; 0 for no timing.
        speed_repeats: Times that each of them is decoded by each decoder; medians count.
        num_traces: Show every round of the last decoder's first answers on a page, `traces.html`.
        seed: Seed of sampling and bootstrap.
        output: Folder of the results.
        num_threads: Threads of torch; null for its own choice.
        dtype: Name of a torch dtype.
        verifier_quantization: Store the verifier's weights in 4 or 8 bits; needs the extra `quantization`.

    Returns:
        The entries of `metrics.json`.

    Raises:
        FileNotFoundError: If a model folder is missing.
        ValueError: If a setting is out of range or drafter and verifier do not fit.
    """
    drafters = {BASELINE: None} | decoders
    _check(drafters, block_sizes or {}, [block_size, acceptance_batch_size, *batch_sizes])
    if speed_prompts < 0:
        raise ValueError(f"speed_prompts is {speed_prompts}; time one prompt or more, or 0 for none.")
    limit_threads(num_threads)
    prompts = load_prompts(dataset, num_prompts)
    timed = load_prompts(speed_dataset or dataset, speed_prompts) if speed_prompts else []
    output.mkdir(parents=True, exist_ok=True)
    samples, times = Journal(output / "samples.jsonl"), Journal(output / "timings.jsonl")
    bench = Decoders(
        verifier,
        drafters,
        prompts,
        timed,
        samples,
        times,
        block_size,
        block_sizes or {},
        max_new_tokens,
        seed,
        dtype,
        verifier_quantization,
    )
    cells: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    for temperature in temperatures:
        answers = {name: bench.answers(name, temperature, acceptance_batch_size) for name in drafters}
        differences += _differences(answers, temperature, seed)
        for batch_size in batch_sizes:
            timings = bench.timings(temperature, batch_size, speed_repeats)
            for name in drafters:
                where = {
                    "decoder": name,
                    "dataset": dataset,
                    "temperature": temperature,
                    "batch_size": batch_size,
                    "speed_dataset": speed_dataset or dataset,
                }
                settings = {"block_size": bench.block_size_of(name, temperature), "num_threads": num_threads}
                acceptance = _acceptance(answers[name], seed)
                exact = _exact(answers[name], answers[BASELINE]) if temperature == 0 else None
                cells.append(where | acceptance | _speed(timings, name) | {"exact": exact} | settings)
    _write(output, cells, differences)
    if num_traces:
        _trace(bench, temperatures[0], num_traces, output / "traces.html")
    return cells


def _check(drafters: Mapping[str, str | None], block_sizes: Mapping[str, int], sizes: Sequence[int]) -> None:
    """Raises ValueError for settings that cannot be run, before any model is loaded."""
    for name, path in drafters.items():
        if (path is None) != (name == BASELINE):
            raise ValueError(
                f"Decoder {name!r} has drafter {path!r}; only {BASELINE!r} goes without, all others need one."
            )
    unknown = [key for key in block_sizes if key.split("@")[0] not in drafters]
    if unknown:
        raise ValueError(f"block_sizes names {', '.join(unknown)}; the decoders are {', '.join(drafters)}.")
    if min([*sizes, *block_sizes.values()]) < 1:
        raise ValueError(f"Block and batch sizes must be one or more, got {[*sizes, *block_sizes.values()]}.")


def _acceptance(answers: Sequence[Generation], seed: int) -> dict[str, Any]:
    """The entries of a cell that come from round records; infinite ones become null."""
    block = max((r.depth for answer in answers for r in answer.rounds), default=1)
    metric = AcceptanceMetrics(block)
    metric.update(answers)
    interval = acclen_interval(acceptance_counts(answers), seed=seed)
    result = {"num_prompts": len(answers)} | metric.compute()
    result |= {"acclen_low": interval.low, "acclen_high": interval.high}
    return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in result.items()}


def _exact(answers: Sequence[Generation], reference: Sequence[Generation]) -> float:
    """Share of answers whose tokens equal the verifier's own."""
    return sum(a.tokens == b.tokens for a, b in zip(answers, reference, strict=True)) / len(answers)


def _speed(timings: Mapping[str, Timing], name: str) -> dict[str, Any]:
    """The entries of a cell that come from timing, null where nothing was timed."""
    if not timings:
        names = ("tokens_per_second", "speedup", "latency_s", "first_token_s", "other_share", "phase_ms")
        return dict.fromkeys(names)
    timing = timings[name]
    rounds = max(timing.rounds, 1)
    return {
        "tokens_per_second": timing.tokens_per_second,
        "speedup": timing.speedup_over(timings[BASELINE]),
        "latency_s": timing.latency,
        "first_token_s": timing.first_token,
        "other_share": timing.other_share,
        "phase_ms": {phase: 1000 * seconds / rounds for phase, seconds in timing.phases.items()},
    }


def _differences(
    answers: Mapping[str, Sequence[Generation]], temperature: float, seed: int
) -> list[dict[str, Any]]:
    """AccLen differences of the decoders that are compared and present."""
    rows = []
    for left, right in COMPARISONS:
        if left in answers and right in answers:
            counts = acceptance_counts(answers[left]), acceptance_counts(answers[right])
            interval = paired_difference(*counts, seed=seed)
            row = {"left": left, "right": right, "temperature": temperature, "num_prompts": len(counts[0])}
            row |= {"difference": interval.value, "low": interval.low, "high": interval.high}
            rows.append(row)
    return rows


def _trace(bench: Decoders, temperature: float, count: int, page: Path) -> None:
    """Writes a page with the rounds of the last decoder."""
    name = list(bench.drafters)[-1]
    decoder = bench.build(name, temperature)
    if not isinstance(decoder, SpeculativeDecoder) or not isinstance(decoder.drafter, RoutedDrafter):
        raise ValueError(
            f"The last decoder, {name!r}, routes nothing; list a routed one last or set num_traces 0."
        )
    prompts, reader = bench.prompts[:count], decoder.drafter.backbone
    answers = decoder.generate(prompts)  # journals keep no router scores
    traces = [
        Trace(prompt, answer, grids_of(reader, prompt), None)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    write_trace_page(page, traces, reader.tokenizer)


def _write(output: Path, cells: list[dict[str, Any]], differences: list[dict[str, Any]]) -> None:
    """Writes every file of results and prints the tables."""
    write_atomic(output / "metrics.json", json.dumps(cells, indent=2) + "\n")
    write_atomic(output / "differences.json", json.dumps(differences, indent=2) + "\n")
    write_atomic(output / "table.csv", tables.flat_csv(cells))
    rows = [tables.table_row(cell) for cell in cells]
    compared = [tables.difference_row(row) for row in differences]
    text = tables.markdown(tables.COLUMNS, rows)
    console = Console()
    for title, columns in (("Acceptance", tables.ACCEPTANCE), ("Speed", tables.SPEED)):
        console.print(tables.terminal(title, columns, tables.pick(rows, columns)), "")
    if compared:
        text += "\n" + tables.markdown(tables.DIFFERENCE_COLUMNS, compared)
        console.print(tables.terminal("AccLen differences", tables.DIFFERENCE_COLUMNS, compared), "")
    write_atomic(output / "table.md", text)
    console.print(f"Written to {output}")
