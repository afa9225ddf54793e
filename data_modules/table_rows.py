"""Rows of data sets on disk, read one by one: tables of `datasets`, and JSON files."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Protocol

from datasets import Dataset, IterableDataset

from data_modules.sources import Row

CHUNK = 1 << 22  # characters of a JSON file that are read at once
LARGEST = 1 << 26  # characters of a record; where there are more, the file is broken


class Table(Protocol):
    """Rows by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Row: ...


class TableRows:
    """Rows of one or more splits, in an order that a seed draws.

    Args:
        name: Name of the source.
        splits: The rows of each split.
        seed: Seed of the order.
    """

    def __init__(self, name: str, splits: Mapping[str, Table], seed: int) -> None:
        self.name, self.splits = name, dict(splits)
        self.ends = list(accumulate(len(table) for table in self.splits.values()))
        self.order = array("q", range(self.ends[-1]))
        Random(f"order-{name}-{seed}").shuffle(self.order)
        self.seed = seed

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Row:
        """Reads a row; images stay encoded."""
        split, row = self._place(number)
        return self.splits[split][row]

    def key(self, number: int) -> str:
        """Name of a row: source, split, number in the split."""
        split, row = self._place(number)
        return f"{self.name}/{split}/{row}"

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever the files do, or the order."""
        digest = hashlib.sha256(f"{self.seed}".encode())
        for split, table in self.splits.items():
            for path in files(table):
                stat = path.stat()
                digest.update(f"{split} {path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return f"{self.name} {digest.hexdigest()[:16]}"

    def _place(self, number: int) -> tuple[str, int]:
        row = self.order[number]
        part = bisect_right(self.ends, row)
        return list(self.splits)[part], row - (self.ends[part - 1] if part else 0)


class JsonRows:
    """Records of a JSON array or of JSON Lines, of which only the places are kept in memory.

    `datasets` reads a JSON array as a whole, and asks that all its records have the same fields; LLaVA's
    gigabyte has neither.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is neither an array nor JSON Lines.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no file {str(path)!r}; give the path of a .json or .jsonl file."
            )
        self.path = path
        self.starts, self.ends = array("q"), array("q")
        for start, end in _records(path):
            self.starts.append(start)
            self.ends.append(end)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> Row:
        """Reads one record."""
        with self.path.open("rb") as file:
            file.seek(self.starts[number])
            row: Row = json.loads(file.read(self.ends[number] - self.starts[number]))
        return row

    @property
    def column_names(self) -> list[str]:
        """Fields of the first records, some of which may lack some."""
        return sorted({name for number in range(min(len(self), 100)) for name in self[number]})


def files(table: Table) -> list[Path]:
    """The files that a table is read from."""
    if isinstance(table, JsonRows):
        return [table.path]
    return [Path(file["filename"]) for file in table.cache_files] if isinstance(table, Dataset) else []


def fetch(rows: IterableDataset, count: int) -> Dataset:
    """Writes the first rows of a stream to the cache of `datasets`, whatever size the whole has.

    Args:
        rows: The stream.
        count: Number of rows.
    """
    return Dataset.from_generator(_taken, gen_kwargs={"rows": rows, "count": count}, features=rows.features)


def _taken(rows: IterableDataset, count: int) -> Iterator[Row]:
    yield from rows.take(count)


def _records(path: Path) -> Iterator[tuple[int, int]]:
    """First byte of each record and the byte behind it."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", newline="") as file:
        text, at, place = file.read(CHUNK), 0, 0  # `place` is the byte of the character `at`
        while True:
            start = _skip(text, at)
            place += start - at
            try:
                record, end = decoder.raw_decode(text, start)
            except json.JSONDecodeError as error:
                more = file.read(CHUNK)
                if not more and start == len(text):
                    return
                if not more or len(text) > LARGEST:
                    raise ValueError(f"{path} is no JSON behind byte {place}: {error.msg}.") from error
                text, at = text[start:] + more, 0
                continue
            if not isinstance(record, dict):
                raise ValueError(
                    f"{path} holds a {type(record).__name__} where a record should be; give an array of "
                    "records, or one record a line."
                )
            size = len(text[start:end].encode())
            yield place, place + size
            place, at = place + size, end


def _skip(text: str, at: int) -> int:
    """The place behind brackets of the array, commas and space, of one byte each."""
    while at < len(text) and text[at] in " \t\r\n,[]":
        at += 1
    return at
