"""Merges the benchmarks of a study's cells and seeds: `metrics.json`, and `table.md` beside the paper."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from data_modules.files import write_whole
from tiger.ablation.jobs import FINISHED, Job, Plan
from tiger.ablation.running import Outcomes
from tiger.ablation.study import Base, Cell, Column, Contrast
from tiger.evaluation.bootstrap import acceptance_counts, paired_difference
from tiger.evaluation.cost_model import with_predictions
from tiger.evaluation.results import SETTINGS
from tiger.evaluation.samples import SAMPLES, Journal, from_record
from tiger.report.paper_tables import FIGURES
from tiger.report.tables import markdown, paper_texts

# Student's t, 97.5 %, with 1, 2, ... degrees of freedom; beyond, the last one is a little too wide.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
USUAL = {key: (title, int(form[1])) for title, key, form in FIGURES}
Figure = dict[str, Any]


def collect(plan: Plan, base: Base, outcomes: Outcomes, record: Mapping[str, Any], command: str) -> Figure:
    """The content of a study's `metrics.json`, docs/ablation.md has its schema.

    Args:
        plan: The study.
        base: What all studies share.
        outcomes: What failed.
        record: Provenance of this process, which counts while no benchmark is finished.
        command: What runs the study again.
    """
    study = plan.study
    entries = {place: _entries(job, place[1]) for place, job in plan.jobs.items()}
    cells = []
    for name, cell in plan.cells.items():
        jobs = [plan.jobs[name, seed] for seed in plan.seeds]
        own = [entries[name, seed] for seed in plan.seeds]
        wrong = next((job for job in jobs if job.folder in outcomes.failed), None)
        status = "failed" if wrong else "finished" if all(own) else "missing"
        values = {c.key: _merged(own, c, cell, base) for c in study.columns} if status == "finished" else {}
        row: Figure = {"name": name, "label": cell.label, "group": cell.group, "x": cell.x, "status": status}
        row |= {"log": str(_culprit(wrong, outcomes).log) if wrong else None, "values": values}
        cells.append(row | {"entries": [entry for one in own for entry in one]})
    for column in study.columns:
        if column.relative_to is not None:
            _divide(cells, column)
    return {
        "study": plan.name,
        "title": study.title,
        "question": study.question,
        "notes": study.notes,
        "command": command,
        "pair": base.pair,
        "sets": _sets(plan, base),
        "seeds": list(plan.seeds),
        "provenance": _provenance(plan, record),
        "columns": [_heading(column, base) for column in study.columns],
        "plot": dict.fromkeys(("kind", "x", "y", "series", "axis")) | study.plot,
        "cells": cells,
        "paper": study.paper,
        "contrasts": _contrasts(plan, cells, base),
    }


def write_study(folder: Path, metrics: Figure) -> None:
    """Writes `metrics.json` and `table.md` of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=1) + "\n")
    write_whole(folder / "table.md", table(metrics))


def student_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one value per seed with the ends of its 95 % interval, by Student's t.

    Raises:
        ValueError: If there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"An interval over seeds needs two or more; got {len(values)}.")
    mean = statistics.fmean(values)
    quantile = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def find(entries: Sequence[Figure], column: Column, cell: Cell, base: Base) -> Figure | None:
    """The entry of a benchmark that a column reads for a cell, the first that fits."""
    where = _where(cell.where | column.where, base) | {"decoder": column.decoder}
    fits = (entry for entry in entries if all(entry.get(key) == value for key, value in where.items()))
    return next(fits, None)


def _where(where: Mapping[str, Any], base: Base) -> Figure:
    """A condition on entries, with the set that stands for a study's."""
    named = where.get("dataset")
    return dict(where) if named is None else {**where, "dataset": base.sets.get(named, named)}


def _entries(job: Job, seed: int) -> list[Figure]:
    """What a finished benchmark has measured, its seed noted; none of one that is not finished."""
    if not job.is_finished:
        return []
    found: list[Figure] = json.loads((job.folder / "metrics.json").read_text())
    return [entry | {"seed": seed} for entry in with_predictions(found)]


def _merged(runs: Sequence[Sequence[Figure]], column: Column, cell: Cell, base: Base) -> Figure:
    """A column's value over seeds; over prompts where there is one seed and its benchmark has an interval."""
    found = [find(run, column, cell, base) for run in runs]
    key = column.value or column.key
    values = [None if entry is None else _value(entry, key, column.scale) for entry in found]
    result = _interval(values)
    if len(values) > 1 or result["mean"] is None:
        return result
    low, high = (_value(found[0] or {}, key + end, column.scale) for end in ("_low", "_high"))
    kind = None if low is None else "bootstrap"
    return result | {"low": low, "high": high, "interval": kind}


def _value(entry: Figure, key: str, scale: float) -> float | None:
    """A number in an entry, dots for entries inside entries; None where there is none."""
    value: Any = entry
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or (key == "acclen" and not entry["p_accept_ge"]):
        return None
    return float(value) * scale


def _divide(cells: Sequence[Figure], column: Column) -> None:
    """Divides a column by the values of one of its cells, seed by seed."""
    by_name = {cell["name"]: cell["values"] for cell in cells}
    whole = by_name[str(column.relative_to)].get(column.key, {}).get("seeds", [])
    for values in filter(None, by_name.values()):
        seeds = [a / b if a and b else None for a, b in zip(values[column.key]["seeds"], whole, strict=False)]
        values[column.key] = _interval(seeds)


def _interval(seeds: Sequence[float | None]) -> Figure:
    """Mean and, with several seeds, interval of one value per seed; nothing where one is missing."""
    known = [value for value in seeds if value is not None]
    result: Figure = {"mean": None, "low": None, "high": None, "seeds": list(seeds), "interval": None}
    if not known or len(known) < len(seeds):
        return result
    if len(known) == 1:
        return result | {"mean": known[0]}
    ends = dict(zip(("mean", "low", "high"), student_interval(known), strict=True))
    return result | ends | {"interval": "seeds"}


def _contrasts(plan: Plan, cells: Sequence[Figure], base: Base) -> list[Figure]:
    """Differences of finished cells: over seeds, or with one seed over prompts for AccLen."""
    by_name = {cell["name"]: cell for cell in cells if cell["status"] == "finished"}
    columns = {column.key: column for column in plan.study.columns}
    rows = []
    for contrast in plan.study.contrasts:
        if contrast.left not in by_name or contrast.right not in by_name:
            continue
        names = contrast.left, contrast.right
        left, right = (by_name[name]["values"][contrast.key]["seeds"] for name in names)
        found = [None if a is None or b is None else a - b for a, b in zip(left, right, strict=True)]
        row: Figure = {"left": contrast.left, "right": contrast.right, "label": contrast.label}
        row |= {"key": contrast.key} | _interval(found)
        if len(found) == 1 and found[0] is not None:
            row |= _paired(plan, contrast, columns[contrast.key], base)
        rows.append(row)
    return rows


def _paired(plan: Plan, contrast: Contrast, column: Column, base: Base) -> Figure:
    """The paired bootstrap interval of an AccLen difference with one seed; empty for other columns."""
    if (column.value or column.key) != "acclen":
        return {}
    counts = []
    for name in (contrast.left, contrast.right):
        job = plan.jobs[name, plan.seeds[0]]
        entry = find(_entries(job, 0), column, plan.cells[name], base)
        assert entry is not None, "the cell has this value"
        wanted = (entry["dataset"], entry["temperature"], entry["decoder"])
        answers = {}
        for records in Journal(job.folder / SAMPLES).cells.values():
            for record in records.values():
                if wanted == (record["dataset"], record["temperature"], record["decoder"]):
                    answers[record["id"]] = record
        counts.append({key: record for key, record in answers.items() if not record.get("skipped")})
    shared = [key for key in counts[0] if key in counts[1]]
    if not shared:
        return {}
    rows = [acceptance_counts([from_record(records[key]) for key in shared]) for records in counts]
    interval = paired_difference(rows[0], rows[1])
    return {"mean": interval.value, "low": interval.low, "high": interval.high, "interval": "bootstrap"}


def _provenance(plan: Plan, record: Mapping[str, Any]) -> Figure:
    """Where figures come from: code, versions and machine of the benchmarks, times of all jobs."""
    done = [job for job in plan.all_jobs if job.is_finished]
    notes = [json.loads((job.folder / FINISHED).read_text()) for job in done]
    ends = [datetime.fromisoformat(note["finished"]) for note in notes]
    starts = [end - timedelta(seconds=note["seconds"]) for end, note in zip(ends, notes, strict=True)]
    files = [job.folder / SETTINGS for job in plan.jobs.values() if job.is_finished]
    records = [json.loads(file.read_text())["provenance"] for file in files] or [record]
    commits = sorted({found["git"].get("commit") or "unknown" for found in records})
    return {
        "commit": ", ".join(commits),
        "dirty": any(found["git"].get("dirty") for found in records),
        "config_hash": _digest(sorted(job.config_hash for job in plan.jobs.values())),
        "versions": records[-1]["versions"],
        "started": min(starts).isoformat(timespec="seconds") if starts else None,
        "finished": max(ends).isoformat(timespec="seconds") if ends else None,
        "hardware": "; ".join(sorted({_hardware(found["hardware"]) for found in records})),
    }


def _sets(plan: Plan, base: Base) -> dict[str, str]:
    """What stands for the sets that a study names."""
    options = base.benchmark | plan.study.benchmark
    named = options.get("dataset", "synthetic")
    names = [*([named] if isinstance(named, str) else named), options.get("speed_dataset")]
    return {name: base.sets[name] for name in names if name in base.sets and base.sets[name] != name}


def _culprit(job: Job, outcomes: Outcomes) -> Job:
    """The job whose failure a job has to thank for its own."""
    broken = [need for need in job.needs if need.folder in outcomes.failed]
    return _culprit(broken[0], outcomes) if broken else job


def _heading(column: Column, base: Base) -> Figure:
    title, digits = USUAL.get(column.value or column.key, (column.key, 2))
    return {
        "key": column.key,
        "label": column.label or title,
        "digits": digits if column.digits is None else column.digits,
        "higher_is_better": column.higher_is_better,
        "where": _where(column.where, base),
    }


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:8]


def _hardware(found: Mapping[str, Any]) -> str:
    gpus = ", ".join(found["gpus"]) or "no GPU"
    return f"{found['cpus']} CPU cores, {gpus}, {found['platform']}"


def table(metrics: Figure) -> str:
    """A study as Markdown: our figures beside the paper's, then the differences."""
    text = f"# {metrics['title']}\n\n{metrics['question']}\n\n"
    text += markdown(*_rows(metrics))
    paper = metrics["paper"]
    seeds = len(metrics["seeds"])
    over = f"{seeds} seeds, 95 % intervals by Student's t" if seeds > 1 else "one seed"
    asked = max((entry["num_prompts"] for cell in metrics["cells"] for entry in cell["entries"]), default=0)
    text += f"\nOurs: pair {metrics['pair']}, {asked} prompts a set, {over}."
    text += f" Paper: {paper['source']}, {paper['pair']}.\n" if paper else "\n"
    if metrics["sets"]:
        text += "\nSets of this pair: " + ", ".join(f"{a} is {b}" for a, b in metrics["sets"].items()) + ".\n"
    if metrics["notes"]:
        text += f"\n{metrics['notes'].strip()}\n"
    if metrics["contrasts"]:
        labels = {cell["name"]: cell["label"] for cell in metrics["cells"]}
        heads = {column["key"]: column for column in metrics["columns"]}
        rows = [
            [
                row["label"],
                f"{labels[row['left']]} − {labels[row['right']]}",
                heads[row["key"]]["label"],
                _text(row, 2, "+"),
            ]
            for row in metrics["contrasts"]
        ]
        text += "\n" + markdown(["Contribution", "Cells", "Of", "Difference [95 %]"], rows)
    failed = [cell for cell in metrics["cells"] if cell["status"] == "failed"]
    text += "".join(f"\n{cell['label']} failed, see `{cell['log']}`.\n" for cell in failed)
    changed = " with changes" if metrics["provenance"]["dirty"] else ""
    return text + f"\n`{metrics['command']}`, commit {metrics['provenance']['commit'][:12]}{changed}\n"


def _rows(metrics: Figure) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: each column of ours, with the paper's beside it where it has one."""
    paper = metrics["paper"] or {"rows": []}
    theirs = paper_texts(paper["rows"])
    shown: list[tuple[str, Figure | None, str]] = []
    labels = [column["label"] for column in metrics["columns"]]
    for column in metrics["columns"]:
        shown.append((column["label"], column, column["label"]))
        if any(column["label"] in values for values in theirs.values()):
            shown.append((f"{column['label']} (paper)", None, column["label"]))
    extra = dict.fromkeys(key for values in theirs.values() for key in values if key not in labels)
    shown += [(f"{key} (paper)", None, key) for key in extra]
    rows = []
    for cell in metrics["cells"]:
        own = theirs.pop(cell["label"], {})
        rows.append([_name(cell), *(_shown(cell["values"], own, *entry[1:]) for entry in shown)])
    rows += [[label, *(_shown({}, own, *entry[1:]) for entry in shown)] for label, own in theirs.items()]
    return ["", *(entry[0] for entry in shown)], rows


def _name(cell: Figure) -> str:
    group = cell["group"] or ""
    name = cell["label"] if cell["label"].startswith(group) else f"{group}: {cell['label']}"
    return name if cell["status"] == "finished" else f"{name} ({cell['status']})"


def _shown(values: Figure, own: Mapping[str, str], column: Figure | None, label: str) -> str:
    if column is None:
        return own.get(label, "–")
    return _text(values[column["key"]], column["digits"]) if column["key"] in values else "–"


def _text(value: Figure, digits: int, sign: str = "") -> str:
    """A value with its interval; a dash where there is none."""
    if value["mean"] is None:
        return "–"
    mean, form = value["mean"], f"{sign}.{digits}f"
    if value["low"] is None:
        return f"{mean:{form}}"
    return f"{mean:{form}} [{value['low']:{form}}, {value['high']:{form}}]"
