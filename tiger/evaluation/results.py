"""What a benchmark writes: settings, figures, subsets and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from data_modules.evaluation import SetOptions, TaskSet
from tiger.decoding.records import Generation
from tiger.evaluation.provenance import environment
from tiger.evaluation.samples import write_atomic
from tiger.report import paper_tables, tables

SETTINGS = "settings.json"  # arguments and provenance of a benchmark, in its folder


def write_settings(output: Path, arguments: Mapping[str, Any]) -> None:
    """Writes the arguments of a benchmark, and where and with what it runs."""
    record = {"arguments": arguments, "provenance": environment()}
    write_atomic(output / SETTINGS, json.dumps(record, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, SetOptions) else str(value)


def write_export(
    output: Path, tasks: TaskSet, decoder: str, temperature: float, answers: Sequence[Generation]
) -> None:
    """Writes a decoder's answers for the set's official grader, where it has one."""
    pairs = zip(tasks.references, answers, strict=True)
    text = tasks.export({reference.id: answer.text for reference, answer in pairs})
    if text is not None:
        write_atomic(output / f"{tasks.label}_{decoder}_T{temperature:g}.json", text)


def write_results(
    output: Path,
    cells: list[dict[str, Any]],
    differences: list[dict[str, Any]],
    sets: Sequence[TaskSet],
    seed: int,
) -> None:
    """Writes every file of results and prints the tables."""
    subsets = {
        tasks.label: {"style": tasks.style, "seed": seed, "source": tasks.settings()}
        | {"ids": [reference.id for reference in tasks.references], "skipped": tasks.skipped}
        for tasks in sets
    }
    write_atomic(output / "subsets.json", json.dumps(subsets, indent=1, default=str) + "\n")
    write_atomic(output / "metrics.json", json.dumps(cells, indent=2) + "\n")
    write_atomic(output / "differences.json", json.dumps(differences, indent=2) + "\n")
    write_atomic(output / "table.csv", tables.flat_csv(cells))
    write_atomic(output / "paper_table.csv", paper_tables.csv_text(cells))
    write_atomic(output / "paper_table.md", paper_tables.markdown_text(cells))
    console, text = Console(), ""
    for tasks in sets:
        rows = [tables.table_row(cell) for cell in cells if cell["dataset"] == tasks.label]
        compared = [tables.difference_row(row) for row in differences if row["dataset"] == tasks.label]
        heading = f"{tasks.label}, " if len(sets) > 1 else ""
        text += (f"\n## {tasks.label}\n\n" if heading else "") + tables.markdown(tables.COLUMNS, rows)
        parts = {"acceptance": tables.ACCEPTANCE, "speed": tables.SPEED, "cost": tables.COST}
        for title, columns in parts.items():
            title = (heading + title) if heading else title.capitalize()
            console.print(tables.terminal(title, columns, tables.pick(rows, columns)), "")
        if compared:
            text += "\n" + tables.markdown(tables.DIFFERENCE_COLUMNS, compared)
            title = heading + "AccLen differences"
            console.print(tables.terminal(title, tables.DIFFERENCE_COLUMNS, compared), "")
        if tasks.skipped:
            reasons = ", ".join(f"{reason} {len(ids)}" for reason, ids in tasks.skipped.items())
            console.print(f"{tasks.label}: left out {reasons}, see subsets.json")
    write_atomic(output / "table.md", text)
    console.print(f"Written to {output}")
