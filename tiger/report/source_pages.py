"""The pages of a report's sources: a benchmark, a study, all training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiger.report import page_plots, page_tables
from tiger.report.origins import origin
from tiger.report.page import write_page
from tiger.report.sources import Benchmark, Run, Study
from tiger.report.study_tables import study_tables
from tiger.report.vector_graphics import series

Place = tuple[str, float, int]


def sections(cells: Sequence[Mapping[str, Any]]) -> dict[Place, list[Mapping[str, Any]]]:
    """Entries of `metrics.json` by set, temperature and batch size."""
    found: dict[Place, list[Mapping[str, Any]]] = {}
    for cell in cells:
        found.setdefault((cell["dataset"], cell["temperature"], cell["batch_size"]), []).append(cell)
    return found


def how(temperature: float) -> str:
    """A temperature in words."""
    return f"T = {temperature:g}" if temperature else "greedy"


def write_benchmark(path: Path, name: str, source: Benchmark, rounds: str | None) -> None:
    """The page of a benchmark.

    Args:
        path: Target file.
        name: Its heading.
        source: The benchmark.
        rounds: Page of rounds to lead to.
    """
    parts = []
    for (dataset, temperature, batch), cells in sections(source.cells).items():
        tables = [page_tables.acceptance(cells)]
        if any(cell["speedup"] is not None for cell in cells):
            tables.append(page_tables.speed(cells, page_plots.plain_of(cells)))
        heading = f"{dataset}, {how(temperature)}" + (f", batch of {batch}" if batch != 1 else "")
        parts.append((heading, tables, page_plots.benchmark_plots(cells)))
    more = [page_tables.differences(source.differences)] if source.differences else []
    more.append(page_tables.cost(source.cells))
    shown = {"title": name, "sections": parts, "more": more, "rounds": rounds}
    write_page(path, "benchmark.html", origin=origin(source), **shown)


def write_study(path: Path, source: Study) -> None:
    """The page of a study."""
    content = source.content
    write_page(
        path,
        "study.html",
        title=content["title"],
        study=content,
        failed=[(cell["label"], cell["log"]) for cell in content["cells"] if cell["status"] == "failed"],
        tables=study_tables(content),
        plots=page_plots.study_plots(content),
        origin=origin(source),
    )


def write_training(path: Path, runs: Mapping[str, Run]) -> None:
    """The page of all training runs, one over the other."""
    write_page(
        path,
        "training.html",
        title="Training",
        looks=series(list(runs)),
        groups=page_plots.training_plots(runs),
        origins={name: origin(run) for name, run in runs.items()},
    )
