"""Benchmark results as tables: for the terminal, for Markdown and for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

Cell = Mapping[str, Any]
COLUMNS = (
    "Decoder",
    "T",
    "Batch",
    "AccLen [95 %]",
    "A≥2",
    "A≥4",
    "A≥8",
    "Rounds/token",
    "Tokens/s",
    "Speedup",
    "Latency ms",
    "Other",
    "Exact",
    "Parameters",
    "Trained s",
)
# Two tables that fit a terminal of 80 columns.
ACCEPTANCE = ("Decoder", "T", "AccLen [95 %]", "A≥2", "A≥4", "A≥8", "Rounds/token", "Exact")
SPEED = ("Decoder", "T", "Batch", "Tokens/s", "Speedup", "Latency ms", "Other")
COST = ("Decoder", "Parameters", "Trained s")


def name_of(cell: Cell) -> str:
    """The decoder's name; it says where answers are not meant to be the verifier's."""
    return f"{cell['decoder']} (lossy)" if cell["is_lossy"] else str(cell["decoder"])


def table_row(cell: Cell) -> list[str]:
    """One cell of `metrics.json` as texts in the order of `COLUMNS`; a dash for what was not measured."""
    survival = {int(n): p for n, p in cell["p_accept_ge"].items()}
    interval = (
        f"{cell['acclen']:.2f} [{cell['acclen_low']:.2f}, {cell['acclen_high']:.2f}]" if survival else "–"
    )
    latency = None if cell["latency_s"] is None else 1000 * cell["latency_s"]
    return [
        name_of(cell),
        f"{cell['temperature']:g}",
        str(cell["batch_size"]),
        interval,
        *(number(survival.get(n), ".2f") for n in (2, 4, 8)),
        number(cell["rounds_per_token"], ".3f"),
        number(cell["tokens_per_second"], ".0f"),
        number(cell["speedup"], ".2f", "x"),
        number(latency, ".0f"),
        number(cell["other_share"] if survival else None, ".1%"),
        "lossy" if cell["is_lossy"] else number(cell["exact"], ".1%"),
        number(cell["parameters"], ",d"),
        number(cell["training_seconds"], ".0f"),
    ]


def number(value: float | None, form: str, unit: str = "") -> str:
    """A figure as text, a dash where there is none."""
    return "–" if value is None else f"{value:{form}}{unit}"


def difference_row(difference: Cell) -> list[str]:
    """Pair, temperature, AccLen difference with its interval, and which side the interval lies on."""
    low, high = difference["low"], difference["high"]
    interval = f"{difference['difference']:+.2f} [{low:+.2f}, {high:+.2f}]"
    return [
        f"{difference['left']} − {difference['right']}",
        f"{difference['temperature']:g}",
        interval,
        side_of_zero(low, high),
    ]


def side_of_zero(low: float, high: float) -> str:
    """Where an interval lies, in words."""
    return "above zero" if low > 0 else "below zero" if high < 0 else "includes zero"


DIFFERENCE_COLUMNS = ("AccLen difference", "T", "Paired bootstrap 95 %", "Interval")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns but the first are aligned right."""
    rule = [":--", *["--:"] * (len(columns) - 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (columns, rule, *rows))


def pick(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> list[list[str]]:
    """Some of the `COLUMNS` of rows, each different row once."""
    places = [COLUMNS.index(column) for column in columns]
    return list(map(list, dict.fromkeys(tuple(row[place] for place in places) for row in rows)))


def terminal(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A rich table; columns but the first are aligned right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.padding, table.pad_edge, table.show_edge, table.collapse_padding = (0, 1), False, False, True
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def flat_csv(cells: Sequence[Cell]) -> str:
    """All values of all cells as CSV; entries of objects become columns such as `p_accept_ge.4`."""
    flat = [_flatten(cell) for cell in cells]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flatten(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in cell.items():
        if isinstance(value, Mapping):
            row |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            row[name] = value
    return row


def paper_texts(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """A paper's figures by row and column, with as many decimals as the longest of their column.

    Args:
        rows: Rows with `label` and `values` by column.
    """
    lengths: dict[str, int] = {}
    for row in rows:
        for column, value in row["values"].items():
            decimals = len(f"{value:g}".partition(".")[2])
            lengths[column] = max(decimals, lengths.get(column, 0))
    return {
        row["label"]: {column: f"{value:.{lengths[column]}f}" for column, value in row["values"].items()}
        for row in rows
    }
