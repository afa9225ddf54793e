import csv
import io

import pytest
from rich.console import Console

from tiger.report import tables

CELL = {
    "decoder": "kd_continued",
    "temperature": 1.0,
    "batch_size": 1,
    "acclen": 4.125,
    "acclen_low": 4.0,
    "acclen_high": 4.25,
    "p_accept_ge": {1: 0.9, 2: 0.8, 4: 0.5, 8: 0.25},
    "rounds_per_token": 0.195,
    "tokens_per_second": 412.4,
    "speedup": 1.934,
    "latency_s": 0.0712,
    "other_share": 0.0321,
    "exact": None,
    "is_lossy": False,
    "parameters": 1234567,
    "training_seconds": None,
}
PLAIN = CELL | {"decoder": "autoregressive", "p_accept_ge": {}, "rounds_per_token": 1.0, "exact": 1.0}


def test_row():
    row = dict(zip(tables.COLUMNS, tables.table_row(CELL), strict=True))
    assert row["AccLen [95 %]"] == "4.12 [4.00, 4.25]"
    assert (row["A≥4"], row["Speedup"], row["Latency ms"], row["Other"]) == ("0.50", "1.93x", "71", "3.2%")
    assert row["Exact"] == "–"
    assert (row["Parameters"], row["Trained s"]) == ("1,234,567", "–")


def test_autoregressive_row_has_no_acceptance():
    row = dict(zip(tables.COLUMNS, tables.table_row(PLAIN), strict=True))
    assert (row["AccLen [95 %]"], row["A≥2"], row["Other"], row["Exact"]) == ("–", "–", "–", "100.0%")


def test_a_lossy_row_says_so_and_has_no_acceptance():
    cell = PLAIN | {"acclen": None, "rounds_per_token": None, "exact": None, "is_lossy": True}
    row = dict(zip(tables.COLUMNS, tables.table_row(cell), strict=True))
    assert (row["AccLen [95 %]"], row["Rounds/token"], row["Exact"]) == ("–", "–", "lossy")
    assert row["Latency ms"] == "71"
    assert row["Decoder"] == "autoregressive (lossy)"


@pytest.mark.parametrize("columns", [tables.ACCEPTANCE, tables.SPEED])
def test_terminal_tables_fit_80_columns_uncut(columns):
    rows = tables.pick([tables.table_row(CELL), tables.table_row(PLAIN)], columns)
    console = Console(width=80, file=io.StringIO())
    console.print(tables.terminal("Title", columns, rows))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert all(text in shown for row in [columns, *rows] for text in row)


def test_pick_drops_repeated_rows():
    rows = [tables.table_row(CELL | {"batch_size": size}) for size in (1, 4)]
    assert len(tables.pick(rows, tables.ACCEPTANCE)) == 1
    assert len(tables.pick(rows, tables.SPEED)) == 2


def test_markdown_and_csv():
    text = tables.markdown(("A", "B"), [["x", "1"]])
    assert text == "| A | B |\n| :-- | --: |\n| x | 1 |\n"
    rows = list(csv.DictReader(io.StringIO(tables.flat_csv([PLAIN, CELL]))))
    assert (rows[1]["p_accept_ge.4"], rows[0]["p_accept_ge.4"]) == ("0.5", "")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "above zero"), (-0.1, 0.3, "includes zero"), (-0.3, -0.1, "below zero")],
)
def test_difference_verdict(low, high, verdict):
    difference = {
        "left": "tiger",
        "right": "kd",
        "temperature": 0.0,
        "difference": 0.2,
        "low": low,
        "high": high,
    }
    row = tables.difference_row(difference)
    assert row[:2] == ["tiger − kd", "0"]
    assert row[3] == verdict


def test_figures_of_a_paper_have_the_decimals_of_their_column():
    rows = [{"label": "a", "values": {"x": 1.7, "y": 2}}, {"label": "b", "values": {"x": 1.77}}]
    assert tables.paper_texts(rows) == {"a": {"x": "1.70", "y": "2"}, "b": {"x": "1.77"}}
