"""Runs jobs: one after another, several at once on this machine, or through Slurm."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import yaml

from data_modules.files import write_whole
from tiger.ablation.jobs import CHANGES, FINISHED, Job
from tiger.ablation.program import logged, run_tiger
from tiger.backbones.folders import resolve
from tiger.drafting.saving import SETTINGS_FILE

Executor = Literal["processes", "local", "slurm"]
POLL = 0.5  # seconds between looks at what runs
TAIL = 12  # lines of a log that are shown
# Jobs are forked from a process that has imported what they need, which takes longer than a small benchmark.
if sys.platform == "linux":
    PROCESSES = multiprocessing.get_context("forkserver")
else:
    PROCESSES = multiprocessing.get_context("spawn")
IMPORTED = ["tiger.evaluation.runner", "tiger.training.lightning_cli", "tiger.training", "callbacks"]


class Handle(Protocol):
    """A job that runs."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def terminate(self) -> None:
        """Ends it."""


Start = Callable[[Job, int], Handle]


@dataclass
class Outcomes:
    """What became of jobs, by folder.

    Attributes:
        failed: Why a job has no result: its log's last lines, or the job that it needed.
    """

    failed: dict[Path, str] = field(default_factory=dict)

    def status(self, job: Job) -> str:
        """`finished`, `failed` or `missing`."""
        if job.is_finished:
            return "finished"
        return "failed" if job.folder in self.failed else "missing"


def now() -> str:
    """The time, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def run(
    jobs: Sequence[Job],
    start: Start,
    workers: int,
    outcomes: Outcomes,
    settled: Callable[[Job], object] = lambda job: None,
) -> None:
    """Runs what is not finished, in order of needs, and goes on behind a job that fails.

    Jobs that measure time wait until nothing else is left that can run, and then run one at a time.

    Args:
        jobs: The jobs, those that others need first.
        start: Starts a job in one of the places from 0 on.
        workers: How many run at once.
        outcomes: Receives what failed.
        settled: Called with each job that has come to an end.
    """
    waiting = [job for job in jobs if not job.is_finished]
    running: dict[int, tuple[Job, Handle, float]] = {}
    try:
        while waiting or running:
            for job in _hopeless(waiting, outcomes):
                waiting.remove(job)
                settled(job)
            for job in _ready(waiting, [job for job, _, _ in running.values()], workers):
                place = min(set(range(workers)) - running.keys())
                waiting.remove(job)
                print(f"{now()} starts {job.name}, about {job.seconds:.0f} s", flush=True)
                try:
                    prepare(job)
                    running[place] = (job, start(job, place), time.monotonic())
                except (OSError, EOFError) as error:
                    outcomes.failed[job.folder] = str(error)
                    settled(job)
            for place, (job, handle, began) in list(running.items()):
                if (status := handle.poll()) is not None:
                    del running[place]
                    _settle(job, status, time.monotonic() - began, outcomes)
                    settled(job)
            time.sleep(POLL if running else 0)
    finally:
        for _, handle, _ in running.values():
            handle.terminate()


def _hopeless(waiting: Sequence[Job], outcomes: Outcomes) -> list[Job]:
    """Jobs of which a need has failed."""
    found = []
    for job in waiting:
        if broken := [need for need in job.needs if need.folder in outcomes.failed]:
            outcomes.failed[job.folder] = f"{broken[0].name} failed, see {broken[0].log}"
            found.append(job)
    return found


def _ready(waiting: Sequence[Job], running: Sequence[Job], workers: int) -> list[Job]:
    """Jobs to start now."""
    if any(job.alone for job in running):
        return []
    possible = [job for job in waiting if all(need.is_finished for need in job.needs)]
    others = [job for job in possible if not job.alone]
    if others or running:
        return others[: workers - len(running)]
    return possible[:1]


def prepare(job: Job) -> None:
    """Writes the config of a job, and the other view of a drafter where it asks for one.

    Raises:
        FileNotFoundError: If what it is to view is no routed drafter.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    write_whole(job.folder / CHANGES, yaml.safe_dump(dict(job.changes), sort_keys=False))
    if job.view is not None:
        view_drafter(job.view[0], job.folder / "drafter", job.view[1])


def view_drafter(source: Path, target: Path, settings: Mapping[str, Any]) -> None:
    """A folder that links to the files of a drafter, and has settings of its own.

    Raises:
        FileNotFoundError: If the source is no routed drafter.
    """
    source = resolve(str(source))
    if not (source / SETTINGS_FILE).is_file():
        raise FileNotFoundError(f"{source} has no {SETTINGS_FILE}; `infer` needs a routed drafter.")
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        link = target / file.name
        link.unlink(missing_ok=True)
        if file.name != SETTINGS_FILE:
            link.symlink_to(file.resolve())
    kept = json.loads((source / SETTINGS_FILE).read_text())
    write_whole(target / SETTINGS_FILE, json.dumps(kept | dict(settings), indent=2) + "\n")


def _settle(job: Job, status: int, seconds: float, outcomes: Outcomes) -> None:
    """Notes how a job has ended."""
    if status == 0:
        note = {"seconds": round(seconds, 1), "finished": now(), "hash": job.config_hash}
        write_whole(job.folder / FINISHED, json.dumps(note, indent=2) + "\n")
        print(f"{now()} finished {job.name} in {seconds:.0f} s", flush=True)
        return
    lines = job.log.read_text(errors="replace").splitlines()[-TAIL:] if job.log.is_file() else []
    outcomes.failed[job.folder] = f"exit status {status}, see {job.log}"
    print(f"{now()} FAILED {job.name} ({outcomes.failed[job.folder]}):", *lines, sep="\n  ", flush=True)


def command(job: Job) -> list[str]:
    """The program of a job."""
    return [sys.executable, "-m", "tiger", *job.words]


@dataclass
class Process:
    """A job on this machine."""

    process: BaseProcess

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.process.exitcode

    def terminate(self) -> None:
        """Kills it and its ranks: a training does not end on request, and goes on as well after a kill."""
        try:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # it has not come to lead its group
            self.process.kill()


def start_process(job: Job, place: int) -> Process:
    """Runs a job on this machine, on a GPU of its own if there are any."""
    environment = dict(os.environ)
    if count := torch.cuda.device_count():
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = seen if len(seen) == count and seen[0] else [str(index) for index in range(count)]
        environment["CUDA_VISIBLE_DEVICES"] = names[place % count]
    PROCESSES.set_forkserver_preload(IMPORTED)
    process = PROCESSES.Process(target=run_tiger, args=(job.words, str(job.log), environment))
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:  # a job would import our main module again, which may be a script without a guard
        process.start()
    finally:
        sys.modules["__main__"] = main
    return Process(process)


def default_workers() -> int:
    """One per GPU; on a machine without, one for every two cores, which share the memory's bandwidth."""
    return torch.cuda.device_count() or max(1, (os.cpu_count() or 1) // 2)


def starter(executor: Executor, output: Path, slurm: Mapping[str, Any]) -> Start:
    """How jobs are started.

    Args:
        executor: `processes` of this machine, or `local` or `slurm` of submitit.
        output: Folder of all results; submitit writes its files below.
        slurm: Parameters of submitit's executor, such as `timeout_min` or `slurm_partition`.

    Raises:
        ValueError: If submitit is needed and not installed, or a parameter is unknown.
    """
    if executor == "processes":
        return start_process
    try:
        import submitit
    except ImportError as error:
        raise ValueError(
            f"executor {executor} needs submitit: pip install 'tiger-vlm[slurm]', or take processes."
        ) from error
    submitter = submitit.AutoExecutor(folder=output / "submitit", cluster=executor)
    try:
        submitter.update_parameters(**slurm)
    except (NameError, TypeError) as error:
        raise ValueError(f"slurm is {dict(slurm)}: {error}") from error

    def start(job: Job, place: int) -> Handle:
        submitter.update_parameters(name=job.folder.name)
        return Submitted(submitter.submit(logged, command(job), str(job.log)))

    return start


@dataclass
class Submitted:
    """A job of submitit."""

    job: Any

    def poll(self) -> int | None:
        """Its exit status; None while it runs. 1 if the scheduler itself ended it."""
        if not self.job.done():
            return None
        return 1 if self.job.exception() is not None else int(self.job.result())

    def terminate(self) -> None:
        """Cancels it."""
        self.job.cancel()
