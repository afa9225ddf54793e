"""Decoded answers on disk: what a benchmark was computed from, and what lets it go on after a stop."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tiger.backbones.folders import commit_of, model_files
from tiger.decoding.records import Generation, Round

SAMPLES = "samples.jsonl"  # the answers of a benchmark, in its folder

log = logging.getLogger(__name__)


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


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record is an answer, or says why there is none."""
    try:
        return "skipped" in record or bool(from_record(record).id)
    except (KeyError, IndexError, TypeError, ValueError):
        return False


class Journal:
    """A JSONL file of records grouped by cell; a cell counts once it is complete, and may grow until then.

    Several processes write files of their own beside it, which `save` joins.

    Args:
        path: The file; lines that a stop left unfinished are passed over with a warning, and what they held
            is computed again.
        identity: Entry by which the records of a cell differ; a later record replaces an earlier one.
        rank: Number of this process.
    """

    def __init__(self, path: Path, identity: str = "id", rank: int = 0) -> None:
        self.path, self.identity = path, identity
        self.own = path.with_suffix(f".rank{rank}.jsonl") if rank else path
        self.cells: dict[str, dict[str, dict[str, Any]]] = {}
        self.read()

    def get(self, key: str) -> list[dict[str, Any]] | None:
        """Records of a complete cell."""
        records = list(self.cells.get(key, {}).values())
        return records if records and len(records) == records[0]["of"] else None

    def found(self, key: str) -> set[str]:
        """Identities of the records that a cell has so far."""
        return set(self.cells.get(key, {}))

    def take(self, keys: Iterable[str], other: Journal) -> int:
        """Takes over answers of another journal's cells that are not here; `save` writes them.

        Returns:
            How many the other one has; damaged ones do not count.
        """
        count = 0
        for key in keys:
            found = {name: record for name, record in other.cells.get(key, {}).items() if _is_whole(record)}
            self.cells[key] = found | self.cells.get(key, {})
            count += len(found)
        return count

    def add(self, key: str, records: Iterable[Mapping[str, Any]], of: int, **shared: Any) -> None:
        """Appends records of a cell that is to have `of` of them; `shared` entries go into each."""
        rows = [{"cell": key, "of": of, **shared, **record} for record in records]
        with self.own.open("a+b") as file:
            if file.tell() and file.seek(-1, os.SEEK_END) and file.read() != b"\n":
                file.write(b"\n")  # end the line in which an earlier process died
            file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
            file.flush()
            os.fsync(file.fileno())
        self.cells.setdefault(key, {}).update((row[self.identity], row) for row in rows)

    def note(self, key: str, name: str, values: Mapping[str, Any]) -> None:
        """Sets an entry of a cell's records, by identity; `save` writes it."""
        for identity, value in values.items():
            self.cells[key][identity][name] = value

    def save(self) -> None:
        """Writes everything that was read, added or noted into one file, and drops those of processes."""
        records = (record for rows in self.cells.values() for record in rows.values())
        write_atomic(self.path, "".join(json.dumps(record) + "\n" for record in records))
        for part in self._parts():
            part.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.path.parent.glob(f"{self.path.stem}.rank*.jsonl"))

    def read(self) -> None:
        """Reads what all processes have written so far."""
        for path in (self.path, *self._parts()):
            for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
                try:
                    record = json.loads(line)
                    cell, identity, _ = record["cell"], record[self.identity], record["of"]
                except (ValueError, KeyError, TypeError):
                    log.warning("%s: line %d is no record; what it held is computed again.", path, number)
                    continue
                self.cells.setdefault(cell, {})[identity] = record


def write_atomic(path: Path, text: str) -> None:
    """Writes a file that is either the old or the new one, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
