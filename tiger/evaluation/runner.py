"""The `benchmark` verb: decoders x evaluation sets x temperatures x batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data_modules.evaluation import AS_PUBLISHED, SetOptions, load_set
from data_modules.files import alone
from tiger.backbones.loading import Quantization, choose_device
from tiger.decoding.acceptance import Sampling
from tiger.decoding.pruners import decoder_options, is_pruner
from tiger.decoding.speculative import Acceptance
from tiger.drafting.chain import check_threshold
from tiger.evaluation import cells as entries
from tiger.evaluation.cost_model import BASELINE
from tiger.evaluation.decoders import Decoders, check_models
from tiger.evaluation.results import write_export, write_results, write_settings
from tiger.evaluation.samples import SAMPLES, Journal
from tiger.evaluation.shards import Shards
from tiger.evaluation.timing import limit_threads
from tiger.evaluation.tracing import write_traces

SHIPPED_DECODERS: dict[str, str | None] = {
    BASELINE: None,
    "vanilla": "tiny/vanilla",
    "kd": "tiny/kd",
    "kd_continued": "tiny/kd_continued",
    "tiger": "tiny/tiger",
}


def benchmark(
    verifier: str = "tiny/verifier",
    decoders: dict[str, str | None] = SHIPPED_DECODERS,
    dataset: list[str] | str = "synthetic",
    num_prompts: int | None = 300,
    set_options: dict[str, SetOptions] | None = None,
    temperatures: Sequence[float] = (0.0, 1.0),
    batch_sizes: Sequence[int] = (1,),
    block_size: int = 8,
    block_sizes: dict[str, int] | None = None,
    max_new_tokens: int | None = None,
    acceptance_batch_size: int = 8,
    speed_dataset: str | None = None,
    speed_prompts: int = 24,
    speed_repeats: int = 5,
    full_token_decoder: str = "vanilla",
    num_traces: int = 0,
    seed: int = 0,
    output: Path = Path("runs/benchmark"),
    num_threads: int | None = 1,
    dtype: str = "float32",
    verifier_quantization: Quantization | None = None,
    device: str | None = None,
    compile_drafter: bool = False,
    confidence_threshold: float = 0.0,
    acceptances: dict[str, Acceptance] | None = None,
    answers_from: Path | None = None,
) -> list[dict[str, Any]]:
    """Compares decoders: what is accepted, how fast and good it is, whether the text is the verifier's own.

    Every decoder answers all prompts of a set once per temperature in large batches, since rows do not depend
    on one another: that gives AccLen, its distribution, scores and exactness. Speed comes from the first
    prompts of `speed_dataset`, which all decoders answer in turn at each batch size, preparation and prefill
    included.

    The folder receives `metrics.json` (one entry per set, decoder, temperature and batch size),
    `differences.json` (AccLen differences with paired bootstrap intervals), `subsets.json` (the samples that
    were taken), `settings.json` (arguments and provenance), `samples.jsonl`, `timings.jsonl`, `table.csv` and
    `table.md`, and `paper_table.csv` and `paper_table.md` in the paper's layout. A second run with the same
    settings decodes only what is missing.
    Under torchrun, every process decodes its share of the prompts; the first one gathers and measures speed.

    Args:
        verifier: Folder, hub id or shipped name of the verifier.
        decoders: Drafter of each decoder by name: a model, `prompt_lookup`, `token_recycling`, `racer` or a
            file of `configs/drafter`; null for autoregressive decoding, which is always included. With
            `sparsevlm`, `vispruner` or a file of `configs/pruner` the verifier reads fewer visual tokens.
        dataset: One or several evaluation sets, see docs/benchmark.md: `synthetic` (held-out test images),
            `mmbench`, `textvqa` and so on; `@speed` behind a name asks for long answers.
        num_prompts: Samples of each set, a seeded subset; null for all.
        set_options: Where sets are read from, by name, such as a local path.
        temperatures: Sampling temperatures; 0 is greedy.
        batch_sizes: Batch sizes at which speed is measured.
        block_size: Tokens drafted in one round.
        block_sizes: Other block sizes by decoder, `tiger: 6`, or by decoder and temperature, `tiger@1: 4`.
        max_new_tokens: Longest answer, tokens; null for the set's own.
        acceptance_batch_size: Batch size while acceptance is measured.
        speed_dataset: Set of the timed prompts; null for each set's own. Speed is commonly measured on long
            answers: `synthetic_long` asks each test image for its longest one.
        speed_prompts: The first so many prompts are timed; 0 for no timing.
        speed_repeats: Times that each of them is decoded by each decoder; medians count.
        full_token_decoder: Name of the decoder whose drafter sees all visual tokens, to which
            full-token-normalised latency refers.
        num_traces: Show the rounds of so many answers of each set on a page, `traces.html`, side by side.
        seed: Seed of sampling, subsets and bootstrap.
        output: Folder of the results.
        num_threads: Threads of torch; null for its own choice.
        dtype: Name of a torch dtype.
        verifier_quantization: Store the verifier's weights in 4 or 8 bits; needs the extra `quantization`.
        device: Where to compute: cpu, cuda or cuda:N; null for a GPU if there is one.
        compile_drafter: Compile the drafters' steps.
        confidence_threshold: Routed drafters and heads end a block where the product of their likeliest
            tokens' chances falls below this; 0 drafts whole blocks. With it, larger blocks pay.
        acceptances: `typical_lossy` by decoder: above temperature 0 it accepts what the verifier finds likely
            enough, as Medusa does, so that its answers no longer follow the verifier. All others are exact.
        answers_from: Folder of another benchmark. What it decoded with the same models, prompts and settings
            is not decoded again, such as the verifier's own answers when only the drafter differs.

    Returns:
        The entries of `metrics.json`; none in processes other than the first.

    Raises:
        FileNotFoundError: If a model folder, a data set, its media or answers to take over are missing.
        RuntimeError: If a greedy answer differs from the verifier's own by more than a tie of logits; all
            results are written before.
        ValueError: If a setting is out of range, the device is not there, drafter and verifier do not fit, a
            file of an earlier run is damaged, or another run writes to the folder.
    """
    arguments = dict(locals())
    place = choose_device(device)
    drafters = {BASELINE: None} | decoders
    names = [dataset] if isinstance(dataset, str) else dataset
    _check(drafters, block_sizes or {}, acceptances or {}, [block_size, acceptance_batch_size, *batch_sizes])
    _check_sets(names, set_options or {}, speed_dataset, speed_prompts)
    _check_cells(temperatures, batch_sizes, speed_repeats)
    check_threshold(confidence_threshold)
    limit_threads(num_threads)
    options = dict.fromkeys([*names, *([speed_dataset] if speed_dataset else [])], AS_PUBLISHED)
    options |= set_options or {}
    check_models(verifier, drafters)
    earlier = None if answers_from is None else _journal_of(answers_from)
    sets = [load_set(name, num_prompts, seed, options[name]) for name in names]
    timed = None
    if speed_dataset and speed_prompts:
        timed = load_set(speed_dataset, speed_prompts, seed, options[speed_dataset])
    shards = Shards()
    _check_warm(drafters, speed_prompts, shards.world_size)
    how = _Measurement(
        tuple(temperatures),
        tuple(batch_sizes),
        acceptance_batch_size,
        speed_repeats,
        full_token_decoder,
        num_traces,
        seed,
        output,
        {"num_threads": num_threads, "device": str(place), "confidence_threshold": confidence_threshold},
    )
    output.mkdir(parents=True, exist_ok=True)
    with alone(output, "benchmark") if shards.is_first else nullcontext():
        if shards.is_first:
            write_settings(output, arguments)
        samples = Journal(output / SAMPLES, rank=shards.rank)
        times = Journal(output / "timings.jsonl", "decoder")
        shards.wait()  # all have read the journal, so all see the same prompts as missing
        first = Decoders(
            verifier,
            drafters,
            sets[0],
            timed or sets[0],
            speed_prompts,
            samples,
            times,
            block_size,
            block_sizes or {},
            max_new_tokens,
            seed,
            dtype,
            verifier_quantization,
            str(place),
            compile_drafter,
            confidence_threshold,
            acceptances or {},
        )
        benches = [first, *(replace(first, tasks=tasks, timed=timed or tasks) for tasks in sets[1:])]
        if earlier is not None:
            taken = sum(bench.take(earlier, temperatures, acceptance_batch_size) for bench in benches)
            if shards.is_first:
                print(f"{taken} answers are taken from {answers_from}.", flush=True)
        _decode(benches, temperatures, acceptance_batch_size, shards)
        shards.end()
        return _results(benches, how) if shards.is_first else []


@dataclass(frozen=True)
class _Measurement:
    """The arguments of `benchmark` that all cells share; `common` entries go into each of them."""

    temperatures: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    acceptance_batch_size: int
    speed_repeats: int
    full_token_decoder: str
    num_traces: int
    seed: int
    output: Path
    common: dict[str, Any]


def _results(benches: Sequence[Decoders], how: _Measurement) -> list[dict[str, Any]]:
    """Gathers what all processes decoded, measures speed, and writes everything."""
    samples = benches[0].samples
    samples.read()
    cells: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    for bench in benches:
        bench.drop_unusable(how.temperatures, how.acceptance_batch_size)
        for temperature in how.temperatures:
            differences += _differences(bench, temperature, how)
            cells += _cells(bench, temperature, how)
    samples.save()
    write_results(how.output, cells, differences, [bench.tasks for bench in benches], how.seed)
    if how.num_traces:
        write_traces(benches, how.temperatures[0], how.num_traces, how.output / "traces.html")
    _assert_lossless(cells)
    return cells


def _differences(bench: Decoders, temperature: float, how: _Measurement) -> list[dict[str, Any]]:
    """AccLen differences on one set at one temperature."""
    names = [name for name in bench.drafters if not bench.is_lossy(name, temperature)]
    answers = {name: bench.answers(name, temperature, how.acceptance_batch_size) for name in names}
    return entries.differences(answers, bench.tasks.label, temperature, how.seed)


def _cells(bench: Decoders, temperature: float, how: _Measurement) -> list[dict[str, Any]]:
    """The entries of one set at one temperature."""
    decoded = {name: _decoded(bench, name, temperature, how) for name in bench.drafters}
    cells = []
    for batch_size in how.batch_sizes:
        timings = bench.timings(temperature, batch_size, how.speed_repeats)
        for name in bench.drafters:
            where: dict[str, Any] = {
                "decoder": name,
                "dataset": bench.tasks.label,
                "temperature": temperature,
            }
            where |= {"batch_size": batch_size, "speed_dataset": bench.timed.label}
            where |= {"style": bench.tasks.style, "block_size": bench.block_size_of(name, temperature)}
            speed = entries.speed(timings, name, how.full_token_decoder, how.seed)
            cells.append(where | decoded[name] | speed | how.common)
    return cells


def _decoded(bench: Decoders, name: str, temperature: float, how: _Measurement) -> dict[str, Any]:
    """The entries of one decoder's answers; their scores go into the journal."""
    answers, reference = (bench.answers(n, temperature, how.acceptance_batch_size) for n in (name, BASELINE))
    points = entries.points(answers, bench.tasks)
    bench.note_scores(name, temperature, how.acceptance_batch_size, points)
    write_export(how.output, bench.tasks, name, temperature, answers)
    is_lossy = bench.is_lossy(name, temperature)
    return (
        {"is_lossy": is_lossy}
        | bench.cost(name)
        | entries.acceptance(answers, how.seed, bench.is_pruned(name))
        | entries.exactness(answers, None if temperature or is_lossy else reference, bench)
        | entries.scores(answers, bench.tasks, points, how.seed)
    )


def _journal_of(folder: Path) -> Journal:
    """The answers of another benchmark.

    Raises:
        FileNotFoundError: If there are none.
    """
    if not (path := folder / SAMPLES).is_file():
        raise FileNotFoundError(f"answers_from is {folder}, which has no {SAMPLES}; name a benchmark.")
    return Journal(path)


def _check_sets(
    names: Sequence[str], options: Mapping[str, SetOptions], speed_dataset: str | None, speed_prompts: int
) -> None:
    """Raises ValueError for settings of sets that cannot be used."""
    if not names or len(set(names)) < len(names):
        raise ValueError(f"dataset is {list(names)}; name one set or more, each once.")
    if unknown := sorted(set(options) - {*names, speed_dataset}):
        raise ValueError(f"set_options names {', '.join(unknown)}; the sets are {', '.join(names)}.")
    if speed_prompts < 0:
        raise ValueError(f"speed_prompts is {speed_prompts}; time one prompt or more, or 0 for none.")


def _check_cells(temperatures: Sequence[float], batch_sizes: Sequence[int], speed_repeats: int) -> None:
    """Raises ValueError where there is nothing to measure, or something twice."""
    for name, values in (("temperatures", temperatures), ("batch_sizes", batch_sizes)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} is {list(values)}; name one value or more, each once.")
    for temperature in temperatures:
        Sampling(temperature)
    if speed_repeats < 1:
        raise ValueError(f"speed_repeats is {speed_repeats}; measure once or more, or set speed_prompts 0.")


def _decode(
    benches: Sequence[Decoders], temperatures: Sequence[float], batch_size: int, shards: Shards
) -> None:
    """Decodes what this process has to of all cells, and shows how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    cells = [(bench, t, name) for bench in benches for t in temperatures for name in bench.drafters]
    share = (shards.rank, shards.world_size)
    with Progress(*columns, disable=not shards.is_first, transient=True) as progress:
        bar = progress.add_task("", total=sum(len(bench.tasks) for bench, _, _ in cells))
        for bench, temperature, name in cells:
            progress.update(bar, description=f"{bench.tasks.label}, {name}, T {temperature:g}")
            bench.decode(name, temperature, batch_size, share, lambda n: progress.advance(bar, n))


def _assert_lossless(cells: Sequence[Mapping[str, Any]]) -> None:
    """Raises RuntimeError if a greedy answer is not the verifier's own."""
    wrong = {
        f"{cell['decoder']} on {cell['dataset']}: {len(cell['mismatches'])} of {cell['num_prompts']}, "
        f"such as {cell['mismatches'][0]}"
        for cell in cells
        if cell["mismatches"]
    }
    if wrong:
        raise RuntimeError(
            "Greedy answers differ from the verifier's own, which no rounding explains: "
            f"{'; '.join(sorted(wrong))}. This is an error of the decoder, please report it; all results "
            "are in the output folder."
        )


def _check_warm(drafters: Mapping[str, str | None], speed_prompts: int, world_size: int) -> None:
    """Raises ValueError where results of a method that remembers other requests would mean nothing."""
    options = {name: decoder_options(path) or {} for name, path in drafters.items() if path is not None}
    warm = [name for name, given in options.items() if given.get("warm")]
    if warm and (speed_prompts or world_size > 1):
        raise ValueError(
            f"{', '.join(warm)} has `warm: true`, and remembers earlier requests: timed prompts are decoded "
            "several times, and of several processes each sees others. Set speed_prompts 0 and run one "
            f"process (now {speed_prompts} and {world_size}), or set warm false."
        )


def _check(
    drafters: Mapping[str, str | None],
    block_sizes: Mapping[str, int],
    acceptances: Mapping[str, Acceptance],
    sizes: Sequence[int],
) -> None:
    """Raises ValueError for settings that cannot be run, before any model is loaded."""
    for name, path in drafters.items():
        if (path is None) != (name == BASELINE):
            raise ValueError(
                f"Decoder {name!r} has drafter {path!r}; only {BASELINE!r} goes without, all others need one."
            )
    unknown = [key for key in block_sizes if key.split("@")[0] not in drafters]
    if unknown:
        raise ValueError(f"block_sizes names {', '.join(unknown)}; the decoders are {', '.join(drafters)}.")
    drafting = [name for name, path in drafters.items() if path is not None and not is_pruner(path)]
    if unknown := [name for name in acceptances if name not in drafting]:
        raise ValueError(
            f"acceptances names {', '.join(unknown)}; the decoders that draft are {', '.join(drafting)}."
        )
    if min([*sizes, *block_sizes.values()]) < 1:
        raise ValueError(f"Block and batch sizes must be one or more, got {[*sizes, *block_sizes.values()]}.")
