"""The front page of a report: best decoders, studies in a line, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiger.report import page_tables
from tiger.report.key_figures import Figure, changes
from tiger.report.origins import origin
from tiger.report.page import file_name, write_page
from tiger.report.page_tables import Table, Value
from tiger.report.source_pages import how, sections
from tiger.report.sources import Benchmark, Run, Source, Study
from tiger.report.study_tables import study_result

HEADLINE_ROWS = 5
CHANGES_SHOWN = 12


def write_front(
    path: Path,
    created: str,
    sources: Mapping[str, Source],
    rounds: Mapping[str, str],
    figures: Sequence[Figure],
    before: Mapping[tuple[str, str], float] | None,
) -> None:
    """Writes the front page.

    Args:
        path: Target file.
        created: When, in words.
        sources: What is reported, by name.
        rounds: Pages of rounds, by name of their benchmark.
        figures: Key figures of this report.
        before: Those of the report before; None if there is none.
    """
    old = before or {}
    found = changes(figures, old)
    found.sort(key=lambda change: -abs(change.now.value - change.before) / (abs(change.before) or 1))
    known = {(figure.where, figure.measure) for figure in figures} & set(old)
    counts = {
        "same": len(known) - len(found),
        "new": len(figures) - len(known),
        "gone": len(old) - len(known),
    }
    write_page(
        path,
        "index.html",
        title="TIGER report",
        created=created,
        benchmarks=[
            {"name": name, "page": file_name(name), "rounds": rounds.get(name)}
            | {"about": _about(source), "tables": _headline(source)}
            for name, source in sources.items()
            if isinstance(source, Benchmark)
        ],
        studies=[
            _study(name, source.content) for name, source in sources.items() if isinstance(source, Study)
        ],
        runs=[name for name, source in sources.items() if isinstance(source, Run)],
        has_previous=before is not None,
        changes=(found[:CHANGES_SHOWN], found[CHANGES_SHOWN:]),
        counts=counts,
        origins={name: origin(source) for name, source in sources.items()},
    )


def _study(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """A study in a few words."""
    open_cells = sum(cell["status"] != "finished" for cell in content["cells"])
    words = {"page": file_name(name), "title": content["title"], "question": content["question"]}
    return words | {"result": study_result(content), "failed": open_cells}


def _about(source: Benchmark) -> str:
    """What a benchmark ran on, in a line."""
    cells = source.cells
    prompts = " and ".join(sorted({f"{cell['num_prompts']:,d}" for cell in cells}))
    devices = ", ".join(sorted({cell["device"] for cell in cells}))
    return f"{', '.join(dict.fromkeys(cell['dataset'] for cell in cells))}: {prompts} prompts on {devices}"


def _headline(source: Benchmark) -> list[Table]:
    """AccLen and speedup of the best decoders at the first batch size, one table for each set."""
    sets = list(dict.fromkeys(cell["dataset"] for cell in source.cells))
    found = []
    for dataset in sets:
        own = [
            (temperature, [cell for cell in cells if page_tables.is_drafted(cell)])
            for (name, temperature, batch), cells in sections(source.cells).items()
            if (name, batch) == (dataset, source.cells[0]["batch_size"])
        ]
        ranked = sorted(own[0][1], key=lambda cell: -cell["acclen"])
        names = [cell["decoder"] for cell in ranked][:HEADLINE_ROWS]
        rows = [[Value(name), *(v for _, cells in own for v in _pair(name, cells))] for name in names]
        columns = [f"{figure}, {how(t)}" for t, _ in own for figure in ("AccLen", "Speedup")]
        note = "In brackets: 95 % interval over prompts."
        if rest := len(ranked) - len(names):
            note += f" {rest} more on {'their' if rest > 1 else 'its'} page."
        found.append(Table(["Decoder", *columns], rows, dataset if len(sets) > 1 else "", note))
    return found


def _pair(name: str, cells: Sequence[Mapping[str, Any]]) -> list[Value]:
    """AccLen and speedup of a decoder, each marked if it is the best; dashes if it is not there."""
    values = []
    for show, key in ((page_tables.acclen, "acclen"), (page_tables.speedup, "speedup")):
        known = {cell["decoder"]: cell[key] for cell in cells if cell[key] is not None}
        own = next((show(cell) for cell in cells if cell["decoder"] == name), Value("–"))
        values.append(Value(own.text, own.note, known.get(name) == max(known.values(), default=0.0)))
    return values
