"""Tables of a study: its own, the paper's, and its contrasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiger.report.page_tables import Cell, Table, Value, with_interval
from tiger.report.tables import paper_texts, side_of_zero


def study_tables(content: Mapping[str, Any]) -> list[Table]:
    """The table of a study, the paper's where the pair is another one, and the contrasts."""
    paper = content["paper"]
    is_same = paper is not None and paper["pair"] == content["pair"]
    beside = paper_texts(paper["rows"]) if is_same else {}
    found = [_study_table(content, beside, f"Paper, {paper['source']}" if is_same else "")]
    if paper is not None and not is_same:
        found.append(_paper_table(paper))
    if content["contrasts"]:
        found.append(_contrast_table(content))
    return found


def _study_table(content: Mapping[str, Any], beside: Mapping[str, Mapping[str, str]], source: str) -> Table:
    columns = content["columns"]
    shown = [column["label"] for column in columns if any(column["label"] in row for row in beside.values())]
    best = {column["key"]: _best_cell(content["cells"], column) for column in columns}
    rows = []
    for cell in content["cells"]:
        group = cell["group"] or ""
        row = [Value(cell["label"], "" if cell["label"].startswith(group) else group)]
        for column in columns:
            row.append(_study_value(cell, column, best[column["key"]] == cell["name"]))
            if column["label"] in shown:
                row.append(Value(beside.get(cell["label"], {}).get(column["label"], "–")))
        rows.append(row)
    headings = ["Cell"]
    for column in columns:
        headings += [column["label"], *([source] if column["label"] in shown else [])]
    seeds = len(content["seeds"])
    kinds = {v["interval"] for cell in content["cells"] for v in cell["values"].values() if v.get("interval")}
    words = {"seeds": f"over {seeds} seeds", "bootstrap": "over prompts"}
    note = (
        f"In brackets: 95 % interval {' or '.join(words[kind] for kind in sorted(kinds))}." if kinds else ""
    )
    return Table(headings, rows, f"Measured, pair {content['pair']}", f"{_asked(content)} {note}".strip())


def _asked(content: Mapping[str, Any]) -> str:
    """How many prompts of which sets were decoded."""
    entries = [entry for cell in content["cells"] for entry in cell["entries"]]
    if not entries:
        return ""
    names = {named: name for name, named in (content.get("sets") or {}).items()}
    sets = [f"{name} ({names[name]})" if name in names else name for name in _unique(entries, "dataset")]
    seeds = ", ".join(map(str, content["seeds"]))
    counts = " or ".join(map(str, _unique(entries, "num_prompts")))
    return f"{counts} prompts of {', '.join(sets)}; seed {seeds}."


def _unique(entries: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(entry[key] for entry in entries))


def _study_value(cell: Cell, column: Cell, is_best: bool) -> Value:
    if cell["status"] != "finished":
        return Value(cell["status"])
    value = cell["values"].get(column["key"]) or {}
    form = f".{column['digits']}f"
    shown = with_interval(value.get("mean"), value.get("low"), value.get("high"), form)
    return Value(shown.text, shown.note, is_best)


def _best_cell(cells: Sequence[Cell], column: Cell) -> str | None:
    """Name of the cell with the best mean, None where there is no better."""
    means = {cell["name"]: (cell["values"].get(column["key"]) or {}).get("mean") for cell in cells}
    known = {name: mean for name, mean in means.items() if mean is not None}
    if column["higher_is_better"] is None or len(set(known.values())) < 2:
        return None
    return (max if column["higher_is_better"] else min)(known, key=known.__getitem__)


def _paper_table(paper: Mapping[str, Any]) -> Table:
    labels = list(dict.fromkeys(label for row in paper["rows"] for label in row["values"]))
    rows = [
        [Value(name), *(Value(texts.get(label, "–")) for label in labels)]
        for name, texts in paper_texts(paper["rows"]).items()
    ]
    title = f"The paper's, {paper['source']}: {paper['pair']}"
    return Table(
        ["Cell", *labels], rows, title, "Another pair: compare the order of the rows, not the figures."
    )


def _contrast_table(content: Mapping[str, Any]) -> Table:
    labels = {cell["name"]: cell["label"] for cell in content["cells"]}
    rows = []
    for row in content["contrasts"]:
        pair = f"{labels.get(row['left'], row['left'])} − {labels.get(row['right'], row['right'])}"
        rows.append([Value(row["label"], pair), *contrast_values(content, row)])
    return Table(("Contrast", "Figure", "Difference", "Interval"), rows, "Contrasts")


def contrast_values(content: Mapping[str, Any], row: Cell) -> list[Value]:
    """What a contrast compares, its difference, and which side of zero its interval lies on."""
    column = next(column for column in content["columns"] if column["key"] == row["key"])
    form, low, high = f"+.{column['digits']}f", row.get("low"), row.get("high")
    side = "–" if low is None or high is None else side_of_zero(low, high)
    return [Value(column["label"]), with_interval(row["mean"], low, high, form), Value(side)]


def study_result(content: Mapping[str, Any]) -> str:
    """A study in a line: its clear contrasts, or else the range of the figure that it is drawn by."""
    known = [row for row in content["contrasts"] if row["mean"] is not None]
    clear = [row for row in known if row["low"] is not None and (row["low"] > 0 or row["high"] < 0)]
    if clear:
        return "; ".join(_contrast_text(content, row) for row in clear)
    if known:
        return "No contrast is clear: each interval includes zero."
    drawn = (content["plot"] or {}).get("y")
    columns = content["columns"]
    column = next((column for column in columns if column["key"] == drawn), columns[0])
    means = {cell["name"]: (cell["values"].get(column["key"]) or {}).get("mean") for cell in content["cells"]}
    found = {name: mean for name, mean in means.items() if mean is not None}
    if not found:
        return "Nothing to compare yet."
    labels = {cell["name"]: cell["label"] for cell in content["cells"]}
    ends = (min(found, key=found.__getitem__), max(found, key=found.__getitem__))
    low, high = (f"{found[name]:.{column['digits']}f} ({labels[name]})" for name in ends)
    return f"{column['label']} {low} to {high}"


def _contrast_text(content: Mapping[str, Any], row: Cell) -> str:
    figure, difference, _ = contrast_values(content, row)
    return f"{row['label']} {difference.text} {figure.text} {difference.note}".strip()
