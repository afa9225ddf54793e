"""What has to run for a study: lessons, trainings, answers and benchmarks, each once for all cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tiger.ablation.study import Base, Cell, Step, Study, merge
from tiger.cli import expand_configs

FINISHED, CHANGES, LOG = "finished.json", "changes.yaml", "log.txt"
# Options of a KD training that its lessons depend on; the data are the others.
LESSON_OPTIONS = (
    *("verifier", "verifier_dtype", "verifier_quantization"),
    *("temperature", "guidance_layers", "guidance_power"),
)
# Options of a benchmark that the verifier's own answers do not depend on.
DECODER_OPTIONS = (
    *("decoders", "block_size", "block_sizes", "acceptances", "confidence_threshold", "compile_drafter"),
    *("speed_dataset", "speed_repeats", "full_token_decoder", "num_traces", "batch_sizes"),
)
NEW_PICTURES = 1000  # between the seeds of data of two seeds


@dataclass(frozen=True)
class Job:
    """One program to run; its folder is named by a hash of all that its outcome depends on.

    Attributes:
        folder: Where it writes.
        words: Arguments of `python -m tiger`.
        changes: Content of the config that is written into the folder, which `words` name last.
        needs: Jobs that have to be finished before.
        seconds: How long it is going to take.
        alone: Whether it measures time, so that nothing may run beside it.
        view: Folder of a drafter that `folder / "drafter"` shows with other settings, and these settings.
    """

    folder: Path
    words: tuple[str, ...]
    changes: Mapping[str, Any]
    needs: tuple[Job, ...] = ()
    seconds: float = 0.0
    alone: bool = False
    view: tuple[Path, Mapping[str, Any]] | None = None

    @property
    def name(self) -> str:
        """Kind and name."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / LOG

    @property
    def is_finished(self) -> bool:
        """Whether it has come to its end."""
        return (self.folder / FINISHED).is_file()

    @property
    def config_hash(self) -> str:
        """The hash in its name."""
        return self.folder.name.rpartition("-")[2]

    def all(self) -> list[Job]:
        """Everything it needs, then itself."""
        return [job for need in self.needs for job in need.all()] + [self]


@dataclass(frozen=True)
class Planner:
    """Makes the jobs of cells.

    Attributes:
        base: What all studies share.
        file: Where it was read from.
        output: Folder of all results.
    """

    base: Base
    file: Path
    output: Path

    def cell(self, name: str, cell: Cell, study: Study, seed: int) -> Job:
        """The benchmark of a cell, with the trainings that it needs.

        Raises:
            ValueError: If it names neither a drafter nor trainings, or a training that the base lacks.
        """
        steps = cell.trainings if cell.trainings is not None else study.trainings
        drafter = cell.drafter or (study.drafter if cell.trainings is None else None)
        start: Job | None = None
        if drafter is None:
            if not steps:
                raise ValueError(f"Cell {name!r} names neither `drafter` nor `trainings`; give one of them.")
            for step in steps:
                start = self.training(step, start, seed)
        path = str(start.folder / "drafter") if start else self.base.drafters.get(str(drafter), str(drafter))
        return self.benchmark(cell, study, path, start, seed)

    def training(self, step: Step, start: Job | None, seed: int) -> Job:
        """A training with one seed.

        Args:
            step: Its name, or `{name: options}`.
            start: The training whose drafter it starts from; None for the drafter that its config names.
            seed: Draws data, their order, anchors and drafts.

        Raises:
            ValueError: If the base has no such training.
        """
        name, options = (step, {}) if isinstance(step, str) else next(iter(step.items()))
        if name not in self.base.trainings:
            known = ", ".join(self.base.trainings)
            raise ValueError(f"{self.file} has no training {name!r}; choose from {known}.")
        recipe = self.base.trainings[name]
        config = self.file.parent / recipe.config
        whole = resolved(config)
        data = {"seed": whole.get("data", {}).get("init_args", {}).get("seed", 0) + NEW_PICTURES * seed}
        changes: dict[str, Any] = {"seed_everything": seed, "data": {"init_args": data}}
        changes["model"] = {"init_args": {**options, "seed": seed}}
        needs = [] if start is None else [start]
        if recipe.lessons:
            needs.append(lessons := self._lessons(config, whole, changes))
            changes["model"]["init_args"]["teacher_cache"] = str(lessons.folder / "cache")
        if start is not None:
            changes["model"]["init_args"]["drafter"] = str(start.folder / "drafter")
        told = "-".join([name, *(str(value) for value in options.values() if _is_short(value)), f"s{seed}"])
        folder = self._folder("trainings", told, whole, changes)
        log = {"save_dir": str(folder.parent), "name": folder.name}
        trainer = {"enable_progress_bar": False, "logger": {"init_args": log}}
        words = ("fit", "--config", str(config), "--config", str(folder / CHANGES), "--ckpt_path", "last")
        seconds = self.base.seconds.start + whole["trainer"].get("max_steps", 0) * recipe.seconds_per_step
        return Job(folder, words, changes | {"trainer": trainer}, tuple(needs), seconds)

    def _lessons(self, config: Path, whole: Mapping[str, Any], changes: Mapping[str, Any]) -> Job:
        """The teacher cache of a KD training, which those on the same data share."""
        options = changes["model"]["init_args"]
        kept = {name: value for name, value in options.items() if name in LESSON_OPTIONS}
        own = {"data": changes["data"], "model": {"init_args": kept}}
        folder = self._folder("lessons", "kd", whole, own)
        kept["teacher_cache"] = str(folder / "cache")
        data = whole["data"]["init_args"]  # a mixture of a folder is counted as the examples of the training
        count = data.get("num_train", whole["trainer"].get("max_steps", 0) * data.get("batch_size", 1))
        words = ("data", "cache-teacher", "--config", str(config), "--config", str(folder / CHANGES))
        seconds = self.base.seconds.start + count * self.base.seconds.lesson
        return Job(folder, words, own, seconds=seconds)

    def benchmark(self, cell: Cell, study: Study, drafter: str, start: Job | None, seed: int) -> Job:
        """The benchmark of a drafter, beside any that the cell's options name."""
        options = merge(self.base.benchmark, study.benchmark, cell.benchmark)
        sets = options.get("dataset", "synthetic")
        options["dataset"] = [self.base.sets.get(s, s) for s in ([sets] if isinstance(sets, str) else sets)]
        timed = options.get("speed_dataset")
        if timed is not None:
            timed = options["speed_dataset"] = self.base.sets.get(timed, timed)
        options["seed"] = seed
        if "set_options" in options:
            options["set_options"] = _only(options["set_options"], [*options["dataset"], timed])
        others = options.get("decoders", {})
        options["decoders"] = others | {"drafter": drafter}
        told = start.folder.name.rpartition("-")[0] if start else f"{Path(drafter).stem}-s{seed}"
        folder = self._folder("benchmarks", told, options, cell.infer)
        if cell.infer:
            options["decoders"]["drafter"] = str(folder / "drafter")
        answers = self._answers(options)
        options |= {"output": str(folder), "answers_from": str(answers.folder)}
        words = ("benchmark", "--config", str(folder / CHANGES))
        view = (Path(drafter), cell.infer) if cell.infer else None
        needs = (answers,) if start is None else (start, answers)
        alone = options.get("speed_prompts", 24) > 0
        seconds = self._answers_seconds(options) * (len(others) + 1)
        seconds += self.base.seconds.start + self._timed_seconds(options) * (len(others) + 2)
        return Job(folder, words, options, needs, seconds, alone, view)

    def _answers(self, options: Mapping[str, Any]) -> Job:
        """The verifier's own answers, which benchmarks on the same prompts share."""
        own = {name: value for name, value in options.items() if name not in DECODER_OPTIONS}
        own |= {"decoders": {}, "speed_prompts": 0}
        if "set_options" in own:
            own["set_options"] = _only(own["set_options"], own["dataset"])
        folder = self._folder("answers", f"s{options['seed']}", own)
        own["output"] = str(folder)
        seconds = self.base.seconds.start + self._answers_seconds(options)
        return Job(folder, ("benchmark", "--config", str(folder / CHANGES)), own, seconds=seconds)

    def _answers_seconds(self, options: Mapping[str, Any]) -> float:
        """Seconds in which one decoder answers all prompts."""
        answers = len(options["dataset"]) * (options.get("num_prompts") or 1000)
        return len(options.get("temperatures", [0, 1])) * answers * self.base.seconds.answer

    def _timed_seconds(self, options: Mapping[str, Any]) -> float:
        """Seconds in which one decoder is timed."""
        timed = options.get("speed_prompts", 24) * options.get("speed_repeats", 5)
        timed *= len(options.get("batch_sizes", [1]))
        timed *= 1 if options.get("speed_dataset") else len(options["dataset"])
        return len(options.get("temperatures", [0, 1])) * timed * self.base.seconds.timed

    def _folder(self, kind: str, name: str, *parts: Mapping[str, Any]) -> Path:
        text = json.dumps(parts, sort_keys=True).replace(f"{self.output}/", "")
        return self.output / kind / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Plan:
    """A study with its jobs.

    Attributes:
        name: Name of the study.
        study: The study.
        cells: Its cells by name.
        seeds: Its seeds.
        jobs: The benchmark of each cell and seed.
    """

    name: str
    study: Study
    cells: Mapping[str, Cell]
    seeds: tuple[int, ...]
    jobs: Mapping[tuple[str, int], Job]

    @cached_property
    def all_jobs(self) -> list[Job]:
        """Every job once, those that others need first."""
        return once(job for cell in self.jobs.values() for job in cell.all())


def once(jobs: Any) -> list[Job]:
    """Each job once, in order."""
    return list({job.folder: job for job in jobs}.values())


def make_plan(name: str, study: Study, cells: Mapping[str, Cell], planner: Planner, folder: Path) -> Plan:
    """The jobs of a study, whose files lie in a folder.

    Raises:
        ValueError: If a cell cannot be planned, with its file.
    """
    seeds = tuple(planner.base.seeds if study.seeds is None else study.seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"Seeds of {name} are {list(seeds)}; give one or more, each once.")
    jobs = {}
    for cell_name, cell in cells.items():
        for seed in seeds:
            try:
                jobs[cell_name, seed] = planner.cell(cell_name, cell, study, seed)
            except (ValueError, KeyError) as error:
                raise ValueError(f"{folder / cell_name}.yaml cannot be planned: {error}") from error
    return Plan(name, study, cells, seeds, jobs)


def resolved(config: Path) -> dict[str, Any]:
    """What a config and its bases add up to."""
    if not config.is_file():
        raise ValueError(f"There is no config {config}.")
    texts = expand_configs(["--config", str(config)])[1::2]
    return merge(*(yaml.safe_load(Path(t).read_text() if "\n" not in t else t) or {} for t in texts))


def remaining(jobs: list[Job]) -> float:
    """Seconds of the jobs that are not finished, one after another."""
    return sum(job.seconds for job in jobs if not job.is_finished)


def _only(options: Mapping[str, Any] | None, sets: Sequence[str | None]) -> dict[str, Any]:
    """The options of some sets."""
    return {name: value for name, value in (options or {}).items() if name in sets}


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and "/" not in str(value)
