"""The verb `ablate`: runs studies and writes their tables."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_modules.files import alone
from tiger.ablation.jobs import Job, Plan, Planner, make_plan, once, remaining
from tiger.ablation.results import collect, write_study
from tiger.ablation.running import Executor, Outcomes, default_workers, run, starter
from tiger.ablation.study import BASE, STUDIES, load_base, load_study, study_names
from tiger.drafting.saving import PLAIN

ALL = "all"
OUTPUT = Path("runs/ablation")


def ablate(
    study: list[str],
    base: Path = BASE,
    studies: Path = STUDIES,
    output: Path = OUTPUT,
    dry_run: bool = False,
    seeds: list[int] | None = None,
    workers: int | None = None,
    executor: Executor = "processes",
    slurm: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Runs the paper's studies on a pair and writes their tables beside the paper's figures.

    Trainings, benchmarks and the verifier's own answers that several cells share run once, those that are
    finished are skipped, and those that were stopped go on. Trainings run side by side; benchmarks that
    measure time run alone.

    Args:
        study: Names of studies, or `all`.
        base: What all studies share: pair, trainings, benchmark.
        studies: Folder of the studies.
        output: Folder of the results: `STUDY/metrics.json` and `STUDY/table.md`, and below `lessons`,
            `trainings`, `answers` and `benchmarks` one folder for each job with its log.
        dry_run: List jobs, cells and the estimated time, and run nothing.
        seeds: Seeds in place of those of studies and base.
        workers: Jobs at once; null for one per GPU, or one for every two cores.
        executor: `processes` on this machine, or submitit's `local` or `slurm`, with the extra `slurm`.
        slurm: Parameters of submitit, such as `{slurm_partition: gpu, gpus_per_node: 1, timeout_min: 600}`.

    Returns:
        The content of each study's `metrics.json`; none in a dry run.

    Raises:
        FileNotFoundError: If a file of a study is missing.
        RuntimeError: If jobs failed; all that can be computed without them is written before.
        ValueError: If a study is unknown, a file cannot be parsed, an option is out of range, or another run
            writes to the folder.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; run one job at once or more.")
    shared = load_base(base)
    planner = Planner(shared, base, output)
    names = study_names(studies) if ALL in study else list(dict.fromkeys(study))
    plans = [_plan(name, planner, studies, seeds) for name in names]
    count = workers or default_workers()
    print(describe(plans, count), flush=True)
    if dry_run:
        return []
    output.mkdir(parents=True, exist_ok=True)
    start = starter(executor, output, slurm or {})
    outcomes, record = Outcomes(), _provenance(output)
    written: dict[str, dict[str, Any]] = {}

    def write(plan: Plan) -> None:
        metrics = collect(plan, shared, outcomes, record, _command(plan.name, base, studies, output, seeds))
        write_study(output / plan.name, metrics)
        written[plan.name] = metrics

    def settled(job: Job) -> None:
        for plan in plans:
            jobs = plan.all_jobs
            if job in jobs and not any(outcomes.status(one) == "missing" for one in jobs):
                write(plan)

    with alone(output, "ablation"):
        try:
            with _ending_on_signals():
                run(once(job for plan in plans for job in plan.all_jobs), start, count, outcomes, settled)
        finally:
            for plan in plans:
                if plan.name not in written:
                    write(plan)
    _report(plans, outcomes, output)
    return list(written.values())


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Ends the run in order when it is terminated or its terminal closes, so that jobs end with it."""
    ends = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ends = []  # no other thread may set handlers
    for number in ends:
        signal.signal(number, lambda got, _: _leave(got, ends))
    try:
        yield
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, ends: Sequence[signal.Signals]) -> None:
    """Ends the run; a second signal must not keep it from ending its jobs."""
    for each in ends:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _plan(name: str, planner: Planner, studies: Path, seeds: Sequence[int] | None) -> Plan:
    study, cells = load_study(name, studies)
    if seeds is not None:
        study = replace(study, seeds=list(seeds))
    for cell_name, cell in cells.items():
        if unknown := sorted(cell.infer.keys() - PLAIN.keys()):
            raise ValueError(
                f"{studies / name / cell_name}.yaml: infer sets {', '.join(unknown)}; a drafter's settings "
                f"are {', '.join(PLAIN)}."
            )
    return make_plan(name, study, cells, planner, studies / name)


def _command(name: str, base: Path, studies: Path, output: Path, seeds: Sequence[int] | None) -> str:
    """What runs a study again."""
    given = {"base": (base, BASE), "studies": (studies, STUDIES), "output": (output, OUTPUT)}
    options = [f"--{option} {value}" for option, (value, usual) in given.items() if value != usual]
    options += [f"--seeds '{list(seeds)}'"] if seeds else []
    if not options:
        return f"make ablation STUDY={name}"
    return " ".join(["python -m tiger ablate", name, *options])


def describe(plans: Sequence[Plan], workers: int) -> str:
    """What is going to run and how long it may take."""
    lines = []
    for plan in plans:
        lines.append(f"{plan.name}: {plan.study.title}")
        for cell in plan.cells:
            jobs = [plan.jobs[cell, seed] for seed in plan.seeds]
            done = sum(job.is_finished for job in jobs)
            lines.append(f"  {cell:<22}{done} of {len(jobs)} finished, {jobs[0].name}")
    every = once(job for plan in plans for job in plan.all_jobs)
    for kind in ("lessons", "trainings", "answers", "benchmarks"):
        jobs = [job for job in every if job.folder.parent.name == kind]
        left = [job for job in jobs if not job.is_finished]
        lines.append(f"{kind}: {len(jobs)}, {len(left)} to run, about {_minutes(remaining(jobs))}")
        if kind in {"lessons", "trainings"}:
            lines += [f"  {job.folder.name}" for job in left]
    alone = remaining([job for job in every if job.alone])
    shared = (remaining(every) - alone) / workers
    lines.append(f"in all about {_minutes(alone + shared)} with {workers} at once (estimated)")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _provenance(output: Path) -> Mapping[str, Any]:
    from callbacks.provenance import collect as provenance  # pulls in Lightning

    return provenance(output)


def _report(plans: Sequence[Plan], outcomes: Outcomes, output: Path) -> None:
    """Says where the tables are.

    Raises:
        RuntimeError: If jobs failed.
    """
    for plan in plans:
        print(f"{plan.name}: {output / plan.name / 'table.md'}")
    if outcomes.failed:
        listed = "\n".join(f"  {folder}: {why}" for folder, why in outcomes.failed.items())
        raise RuntimeError(f"{len(outcomes.failed)} jobs have no result; run again to repeat them:\n{listed}")
