"""The figures that one report is compared with the next by: `report.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiger.evaluation.samples import write_atomic
from tiger.report.sources import Benchmark, Run, Source, Study

FILE = "report.json"
FIGURES = (("AccLen", "acclen", 2), ("Speedup", "speedup", 2), ("Score", "score", 1), ("Exact", "exact", 3))
LOGGED = (("AccLen", "accept/length"), ("Reward", "reward/mean"))


@dataclass(frozen=True)
class Figure:
    """One number of a report.

    Attributes:
        where: Benchmark, study or run, and what in it.
        measure: What was measured.
        value: The number.
        digits: Digits behind the point that it is shown with.
        higher_is_better: None where neither is.
        low: Lower end of its interval, if it has one.
        high: Upper end.
    """

    where: str
    measure: str
    value: float
    digits: int = 2
    higher_is_better: bool | None = True
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Change:
    """A figure that is not what it was.

    Attributes:
        now: The new figure.
        before: Its value in the report before.
    """

    now: Figure
    before: float

    @property
    def difference(self) -> str:
        """The change with its sign."""
        return f"{self.now.value - self.before:+.{self.now.digits}f}".replace("-", "−")

    @property
    def verdict(self) -> str:
        """Whether it is `better`, `worse`, or `open`: within the new interval, or of no direction."""
        low, high = self.now.low, self.now.high
        is_inside = low is not None and high is not None and low <= self.before <= high
        if is_inside or self.now.higher_is_better is None:
            return "open"
        return "better" if (self.now.value > self.before) == self.now.higher_is_better else "worse"


def key_figures(sources: Mapping[str, Source]) -> list[Figure]:
    """The figures of named sources."""
    found = []
    for name, source in sources.items():
        if isinstance(source, Benchmark):
            found += list(_of_benchmark(name, source))
        elif isinstance(source, Study):
            found += list(_of_study(name, source.content))
        else:
            found += list(_of_run(name, source))
    return found


def _of_benchmark(name: str, source: Benchmark) -> Iterator[Figure]:
    for cell in source.cells:
        where = f"{name}: {cell['decoder']} on {cell['dataset']}, T = {cell['temperature']:g}"
        where += f", batch of {cell['batch_size']}" if cell["batch_size"] != 1 else ""
        for measure, key, digits in FIGURES:
            value = cell.get(key)
            if value is not None and (cell["p_accept_ge"] or key not in ("acclen", "speedup")):
                ends = cell.get(f"{key}_low"), cell.get(f"{key}_high")
                yield Figure(where, measure, value, digits, True, *ends)


def _of_study(name: str, content: Mapping[str, Any]) -> Iterator[Figure]:
    for cell in content["cells"]:
        for column in content["columns"]:
            value = cell["values"].get(column["key"]) or {}
            if value.get("mean") is not None:
                where, direction = f"{name}: {cell['label']}", column["higher_is_better"]
                ends = value.get("low"), value.get("high")
                yield Figure(where, column["label"], value["mean"], column["digits"], direction, *ends)


def _of_run(name: str, source: Run) -> Iterator[Figure]:
    for measure, tag in LOGGED:
        if points := source.scalars.get(tag):
            yield Figure(name, f"{measure} at the end", points[-1][1])


def read_figures(folder: Path) -> dict[tuple[str, str], float] | None:
    """Values by place and measure of the report in a folder; None if there is none."""
    if not (folder / FILE).is_file():
        return None
    content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return {(figure["where"], figure["measure"]): figure["value"] for figure in content["figures"]}


def write_figures(folder: Path, created: str, figures: Sequence[Figure]) -> None:
    """Writes `report.json`."""
    content = {"created": created, "figures": [asdict(figure) for figure in figures]}
    write_atomic(folder / FILE, json.dumps(content, indent=1) + "\n")


def changes(figures: Sequence[Figure], before: Mapping[tuple[str, str], float]) -> list[Change]:
    """Figures that differ from those of the report before in a digit that is shown."""
    known = ((figure, before.get((figure.where, figure.measure))) for figure in figures)
    found = [Change(figure, value) for figure, value in known if value is not None]
    return [change for change in found if float(change.difference.replace("−", "-"))]
