"""Benchmark results in the layout of the paper's tables: methods by rows, evaluation sets by columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tiger.report.tables import markdown, name_of

Cell = Mapping[str, Any]
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("AccLen", "acclen", ".2f"),
    ("Spd.", "speedup", ".2f"),
    ("VerRds.", "rounds_per_token", ".3f"),
    ("VerRds. (paper)", "rounds_per_token_paper", ".3f"),
    ("VerRds./answer", "rounds_per_answer", ".1f"),
    ("VerRds./answer (paper)", "rounds_per_answer_paper", ".1f"),
    ("Lat. (AR)", "latency_ar_normalized", ".3f"),
    ("Lat. (full)", "latency_full_token_normalized", ".3f"),
    ("Mem. GiB", "peak_memory_gib", ".2f"),
    ("Acc.", "score", ".1f"),
)
MAIN = ("AccLen", "Spd.", "Acc.")


def sections(cells: Sequence[Cell]) -> list[tuple[float, int]]:
    """Temperatures with batch sizes, each of which makes one table."""
    return list(dict.fromkeys((cell["temperature"], cell["batch_size"]) for cell in cells))


def paper_rows(
    cells: Sequence[Cell], section: tuple[float, int], figures: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """One table: its columns and its rows.

    Args:
        cells: Entries of `metrics.json`.
        section: Temperature and batch size.
        figures: First entries of `FIGURES`.
    """
    chosen = [cell for cell in cells if (cell["temperature"], cell["batch_size"]) == section]
    sets = list(dict.fromkeys(cell["dataset"] for cell in chosen))
    shown = [figure for figure in FIGURES if figure[0] in figures]
    by_place = {(name_of(cell), cell["dataset"]): cell for cell in chosen}
    columns = ["Method", *(f"{name} {title}" for name in sets for title, _, _ in shown)]
    methods = dict.fromkeys(name_of(cell) for cell in chosen)
    rows = [[m, *(_text(by_place[m, s], *figure[1:]) for s in sets for figure in shown)] for m in methods]
    return columns, rows


def markdown_text(cells: Sequence[Cell]) -> str:
    """The tables of AccLen, Spd. and Acc. over all sets, then one with every figure for each set."""
    text = ""
    for temperature, batch_size in sections(cells):
        text += f"## T = {temperature:g}, batch size {batch_size}\n\n"
        text += markdown(*paper_rows(cells, (temperature, batch_size), MAIN)) + "\n"
        for name in dict.fromkeys(cell["dataset"] for cell in cells):
            own = [cell for cell in cells if cell["dataset"] == name]
            columns, rows = paper_rows(own, (temperature, batch_size), [title for title, _, _ in FIGURES])
            titles = ["Method", *(column.removeprefix(f"{name} ") for column in columns[1:])]
            text += f"{name} ({_metric(own)})\n\n{markdown(titles, rows)}\n"
    return text


def csv_text(cells: Sequence[Cell]) -> str:
    """Every figure of every set as CSV, one line per method, temperature and batch size."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for number, section in enumerate(sections(cells)):
        columns, rows = paper_rows(cells, section, [title for title, _, _ in FIGURES])
        if not number:
            writer.writerow(["T", "Batch", *columns])
        writer.writerows([f"{section[0]:g}", section[1], *row] for row in rows)
    return buffer.getvalue()


def _metric(cells: Sequence[Cell]) -> str:
    return f"Acc.: {cells[0]['metric']}" if cells[0]["metric"] else "not scored"


def _text(cell: Cell, key: str, form: str) -> str:
    """A figure as text; a dash where there is none, and for acceptance without drafts."""
    value = cell[key]
    if value is None or (not cell["rounds"] and key in ("acclen", "rounds_per_answer")):
        return "–"
    return f"{value:{form}}x" if key == "speedup" else f"{value:{form}}"
