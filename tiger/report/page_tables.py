"""Tables of a report's pages, and those of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiger.evaluation.cost_model import predicted_speedup
from tiger.report import tables
from tiger.report.tables import number

Cell = Mapping[str, Any]
NARROW = 4  # columns


@dataclass(frozen=True)
class Value:
    """One field of a table.

    Attributes:
        text: What it says.
        note: What stands below, such as an interval.
        is_best: Whether no other row has a better one.
    """

    text: str
    note: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first field of a row is its name.

    Attributes:
        columns: Headings.
        rows: Fields.
        title: Heading of the whole.
        note: How to read it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    title: str = ""
    note: str = ""

    @property
    def is_narrow(self) -> bool:
        """Whether something fits beside it on a wide screen."""
        return len(self.columns) <= NARROW


def is_drafted(cell: Cell) -> bool:
    """Whether an entry of `metrics.json` has rounds to speak of."""
    return bool(cell["p_accept_ge"])


def is_timed(cell: Cell) -> bool:
    """Whether an entry of `metrics.json` has rounds and their times."""
    return is_drafted(cell) and bool(cell.get("phase_ms")) and cell["speedup"] is not None


def with_interval(
    value: float | None, low: float | None, high: float | None, form: str, unit: str = ""
) -> Value:
    """A number with its interval below."""
    note = "" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"
    return Value(number(value, form, unit), "" if value is None else note)


def acceptance(cells: Sequence[Cell]) -> Table:
    """What is accepted, how good the answers are, and whether they are the verifier's own."""
    columns = ("Decoder", "AccLen", "A≥2", "A≥4", "A≥8", "Rounds/token", "Score", "Exact")
    rows = []
    for cell in cells:
        shares = {int(n): share for n, share in cell["p_accept_ge"].items()}
        row = [Value(cell["decoder"]), acclen(cell)]
        row += [Value(number(shares.get(n), ".2f")) for n in (2, 4, 8)]
        row += [Value(number(cell["rounds_per_token"], ".3f"))]
        row += [with_interval(cell["score"], cell["score_low"], cell["score_high"], ".1f")]
        row += [Value("lossy" if cell["is_lossy"] else number(cell["exact"], ".1%"))]
        rows.append(row)
    scores = ", ".join(sorted({cell["metric"] for cell in cells if cell["metric"]}))
    note = "In brackets: 95 % interval over prompts. A≥n: share of rounds with n or more accepted tokens."
    note += f" Score: {scores}." if scores else ""
    return Table(columns, _best(rows, 1, cells, "acclen", is_drafted), "What is accepted", note)


def acclen(cell: Cell) -> Value:
    """AccLen with its interval; a dash for an entry without drafts."""
    if not is_drafted(cell):
        return Value("–")
    return with_interval(cell["acclen"], cell["acclen_low"], cell["acclen_high"], ".2f")


def speedup(cell: Cell) -> Value:
    """Speedup with its interval."""
    return with_interval(cell["speedup"], cell.get("speedup_low"), cell.get("speedup_high"), ".2f", "×")


def speed(cells: Sequence[Cell], plain: Cell | None) -> Table:
    """How fast, and how fast the cost model says.

    Args:
        cells: Entries of `metrics.json` of one set, temperature and batch size.
        plain: The autoregressive decoder's among them.
    """
    columns = ("Decoder", "Speedup", "Cost model", "Tokens/s", "Latency ms", "First token ms", "Round ms")
    rows = []
    for cell in cells:
        own = sum(cell["phase_ms"].values()) if is_timed(cell) else None
        predicted = predicted_speedup(cell, plain) if plain and own else None
        row = [Value(cell["decoder"]), speedup(cell), Value(number(predicted, ".2f", "×"))]
        row += [Value(number(cell["tokens_per_second"], ".0f"))]
        row += [Value(number(_thousand(cell[key]), ".0f")) for key in ("latency_s", "first_token_s")]
        rows.append([*row, Value(number(own, ".1f"))])
    note = f"Timed on {', '.join(sorted({cell['speed_dataset'] for cell in cells}))}, {_places(cells)}."
    note += " Cost model: first token, then a round of this time for every AccLen + 1 tokens."
    return Table(columns, _best(rows, 1, cells, "speedup", is_timed), "How fast", note)


def _thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _places(cells: Sequence[Cell]) -> str:
    places = {f"{cell['device']} with {cell['num_threads'] or 'all'} threads" for cell in cells}
    return " and ".join(sorted(places)).replace(" 1 threads", " one thread")


def cost(cells: Sequence[Cell]) -> Table:
    """Weights and training time of the drafters."""
    columns = ("Decoder", "Parameters", "Trained s")
    rows = tables.pick([tables.table_row(cell) for cell in cells if is_drafted(cell)], columns)
    return Table(columns, [list(map(Value, row)) for row in rows], "What the drafters cost")


def differences(rows: Iterable[Cell]) -> Table:
    """AccLen differences of compared decoders."""
    texts = [tables.difference_row(row) for row in rows]
    return Table(tables.DIFFERENCE_COLUMNS, [list(map(Value, row)) for row in texts], "Compared by pairs")


def _best(
    rows: list[list[Value]], place: int, cells: Sequence[Cell], key: str, counts: Callable[[Cell], bool]
) -> list[list[Value]]:
    """The rows with the highest value of a column marked."""
    values = [cell[key] if counts(cell) and not cell["is_lossy"] else None for cell in cells]
    top = max((value for value in values if value is not None), default=None)
    for row, value in zip(rows, values, strict=True):
        if value is not None and value == top:
            row[place] = Value(row[place].text, row[place].note, True)
    return rows
