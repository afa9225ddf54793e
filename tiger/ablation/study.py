"""Reads the studies of `configs/ablation`: a base that all share, and a folder for each study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentError, ArgumentParser

STUDIES = Path("configs/ablation")
BASE = STUDIES / "base.yaml"
STUDY = "study.yaml"
Step = str | dict[str, dict[str, Any]]
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Recipe:
    """A training that cells may name.

    Attributes:
        config: Config of `fit`, relative to the base's file.
        seconds_per_step: Its cost, for estimates.
        lessons: Whether it is KD from a teacher cache, which is then made once for all such trainings.
    """

    config: str
    seconds_per_step: float = 1.0
    lessons: bool = False


@dataclass(frozen=True)
class Seconds:
    """What else estimates are made from: a start of a program, a lesson, an answer and a timed answer."""

    start: float = 10.0
    lesson: float = 0.1
    answer: float = 0.1
    timed: float = 0.5


@dataclass(frozen=True)
class Base:
    """What all studies of a pair share.

    Attributes:
        pair: Name of the pair.
        trainings: Trainings by name.
        drafters: Drafters that are there already, by the names that cells use.
        sets: Evaluation sets by the names that studies use, such as `ocr`.
        benchmark: Options of `benchmark`.
        seeds: Seeds of trainings and benchmarks.
        seconds: What estimates are made from.
    """

    pair: str
    trainings: dict[str, Recipe]
    drafters: dict[str, str]
    sets: dict[str, str]
    benchmark: dict[str, Any]
    seeds: list[int] = field(default_factory=lambda: [0])
    seconds: Seconds = field(default_factory=Seconds)


@dataclass(frozen=True)
class Column:
    """A column of a study's table.

    Attributes:
        key: Its name in `metrics.json`.
        value: Entry of the benchmark, dots for entries inside entries; the key by default.
        where: Which entry of the benchmark: `temperature`, `dataset`, `batch_size`; the first one by default.
        decoder: Whose entry: `drafter` is that of the cell.
        relative_to: Cell whose value divides those of all cells.
        scale: Factor of the value, such as 100 for per cent.
        label: Its heading; the usual one of the value by default.
        digits: Digits behind the point; the usual ones by default.
        higher_is_better: Null where neither is.
    """

    key: str
    value: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    decoder: str = "drafter"
    relative_to: str | None = None
    scale: float = 1.0
    label: str | None = None
    digits: int | None = None
    higher_is_better: bool | None = True


@dataclass(frozen=True)
class Contrast:
    """A difference of two cells, paired by seed; left minus right of a column."""

    left: str
    right: str
    label: str
    key: str = "acclen"


@dataclass(frozen=True)
class Cell:
    """A row of a study's table.

    Attributes:
        label: Its name in the table, as in the paper's where it is there too.
        group: Heading above it.
        x: Its place on the axis of a plot.
        drafter: A drafter of the base, a folder or a method without training, in place of `trainings`.
        trainings: Trainings in turn, each from the drafter of the one before it: a name of the base, or
            `{name: {option: value}}` with options of the task. The study's by default.
        where: Which entry of its benchmark it shows, beside what a column says.
        infer: Settings of the trained drafter that decoding changes, such as `num_routed`.
        benchmark: Options of `benchmark` that differ from the study's.
    """

    label: str
    group: str | None = None
    x: float | None = None
    drafter: str | None = None
    trainings: list[Step] | None = None
    where: dict[str, Any] = field(default_factory=dict)
    infer: dict[str, Any] = field(default_factory=dict)
    benchmark: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A question, the cells that answer it, and how they are laid out.

    Attributes:
        title: Heading.
        question: What is asked, one sentence.
        cells: Names of the cells, which are files beside this one, in order.
        columns: Columns of the table.
        trainings: Trainings of cells that name neither their own nor a drafter.
        drafter: Drafter of cells that name neither.
        benchmark: Options of `benchmark` that differ from the base's.
        seeds: Seeds in place of the base's.
        contrasts: Differences of cells.
        plot: How a report draws it: `kind`, `x`, `y`, `series`, and `axis`, the name of a line's axis.
        paper: The paper's figures: `source`, `pair` and `rows` of `label` and `values` by column label.
        notes: What to know when reading it.
    """

    title: str
    question: str
    cells: list[str]
    columns: list[Column]
    trainings: list[Step] | None = None
    drafter: str | None = None
    benchmark: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None
    contrasts: list[Contrast] = field(default_factory=list)
    plot: dict[str, str | None] = field(default_factory=dict)
    paper: dict[str, Any] | None = None
    notes: str = ""


def study_names(studies: Path = STUDIES) -> list[str]:
    """Names of the studies in a folder, in alphabetical order."""
    return sorted(path.parent.name for path in studies.glob(f"*/{STUDY}"))


def load_base(file: Path = BASE) -> Base:
    """Reads what all studies share.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be parsed.
    """
    return _parse(Base, file)


def load_study(name: str, studies: Path = STUDIES) -> tuple[Study, dict[str, Cell]]:
    """Reads a study and its cells by name.

    Args:
        name: Its folder.
        studies: The folder of all studies.

    Raises:
        FileNotFoundError: If a cell has no file.
        ValueError: If there is no such study, a file cannot be parsed, or a contrast names no cell.
    """
    known = study_names(studies)
    if name not in known:
        choices = f"choose from {', '.join(known)}, or all" if known else "no folder in it has a study.yaml"
        raise ValueError(f"There is no study {name!r} in {studies}; {choices}.")
    folder = studies / name
    study = _parse(Study, folder / STUDY)
    cells = {cell: _parse(Cell, folder / f"{cell}.yaml") for cell in study.cells}
    keys = {column.key for column in study.columns}
    others = [column.relative_to for column in study.columns if column.relative_to not in (None, *cells)]
    if others:
        raise ValueError(f"{folder / STUDY}: a column is relative to {others[0]!r}, which is no cell.")
    drawn = {study.plot.get(axis) for axis in ("x", "y")} - {None, "x", "label", *keys}
    if drawn:
        raise ValueError(
            f"{folder / STUDY}: the plot shows {drawn.pop()!r}; columns are {', '.join(sorted(keys))}, "
            "and x may be x or label."
        )
    for contrast in study.contrasts:
        if not {contrast.left, contrast.right} <= cells.keys() or contrast.key not in keys:
            raise ValueError(
                f"{folder / STUDY}: contrast {contrast.label!r} compares {contrast.left!r} and "
                f"{contrast.right!r} by {contrast.key!r}; cells are {', '.join(cells)}, columns "
                f"{', '.join(sorted(keys))}."
            )
    return study, cells


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings over one another, the later one wins; mappings inside are merged too, lists are replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = result.get(key)
            inside = isinstance(old, dict) and isinstance(value, Mapping)
            result[key] = merge(result[key], value) if inside else value
    return result


def _parse(kind: type[Parsed], file: Path) -> Parsed:
    """A file's content as a dataclass, its types checked."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}; it should hold a {kind.__name__.lower()}.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=kind)
    try:
        content = yaml.safe_load(file.read_text()) or {}
        parsed: Parsed = parser.instantiate(parser.parse_object({"it": content})).it
    except (yaml.YAMLError, ArgumentError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is no {kind.__name__.lower()}: {error}") from error
    return parsed
