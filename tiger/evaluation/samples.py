"""Decoded answers on disk: what a benchmark was computed from, and what lets it go on after a stop."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tiger.backbones.folders import commit_of, model_files
from tiger.decoding.records import Generation, Round


def settings_key(settings: Mapping[str, Any]) -> str:
    """Name of a cell: equal settings, equal name."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(folder: Path) -> list[list[Any]]:
    """What tells one model from another: a hub repository's commit, else names, sizes and times of files."""
    if (commit := commit_of(folder)) is not None:
        return [["commit", commit]]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in model_files(folder)]


def to_record(generation: Generation) -> dict[str, Any]:
    """A generation as one line of JSON; router scores are left out."""
    rounds = generation.rounds
    return {
        "id": generation.id,
        "text": generation.text,
        "finish": generation.finish,
        "seconds": generation.seconds,
        "prefill_seconds": generation.prefill_seconds,
        "tokens": generation.tokens,
        "accepted": [r.accepted for r in rounds],
        "bonus": [r.bonus for r in rounds],
        "drafted": [r.drafted for r in rounds],
        "route": [r.route for r in rounds],
        "phases": [r.seconds for r in rounds],
        **({"parents": [r.parents for r in rounds]} if any(r.parents for r in rounds) else {}),
    }


def from_record(record: Mapping[str, Any]) -> Generation:
    """The generation that `to_record` wrote, without router scores."""
    columns = [record[name] for name in ("drafted", "accepted", "bonus", "route", "phases")]
    columns.append(record.get("parents", [[]] * len(columns[0])))
    rounds, root = [], 0
    for drafted, accepted, bonus, route, phases, parents in zip(*columns, strict=True):
        rounds.append(
            Round(drafted, accepted, bonus, record["tokens"][root], route, seconds=phases, parents=parents)
        )
        root += accepted + 1
    return Generation(
        record["id"],
        record["tokens"],
        record["text"],
        record["finish"],
        rounds,
        record["prefill_seconds"],
        record["seconds"],
    )


class Journal:
    """A JSONL file of records grouped by cell; a cell counts once it is complete.

    Args:
        path: The file; lines that a stop left unfinished are ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, list[dict[str, Any]]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.cells.setdefault(record["cell"], []).append(record)
        self._repair()

    def _repair(self) -> None:
        """Drops cells whose last record is missing, so that each one appears once."""
        whole = {key: rows for key, rows in self.cells.items() if len(rows) == rows[0]["of"]}
        if self.path.exists():
            lines = "".join(json.dumps(record) + "\n" for rows in whole.values() for record in rows)
            write_atomic(self.path, lines)
        self.cells = whole

    def get(self, key: str) -> list[dict[str, Any]] | None:
        """Records of a complete cell."""
        return self.cells.get(key)

    def add(self, key: str, records: Iterable[Mapping[str, Any]], **shared: Any) -> list[dict[str, Any]]:
        """Appends a complete cell; `shared` entries go into each of its records."""
        rows = [dict(record) for record in records]
        rows = [{"cell": key, "of": len(rows), **shared, **row} for row in rows]
        with self.path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        self.cells[key] = rows
        return rows


def write_atomic(path: Path, text: str) -> None:
    """Writes a file that is either the old or the new one, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
