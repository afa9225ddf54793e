"""What is known of a mixture without its content: which rows it keeps, and what became of the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from filelock import FileLock

from data_modules.files import damaged, read_json, write_whole
from data_modules.sources import Row, Source


class Rows(Protocol):
    """Rows of a data set by number, read on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Row: ...

    def key(self, number: int) -> str:
        """Name of a row, unique in the mixture."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the rows do."""


@dataclass
class Share:
    """What a mixture takes from one source.

    Attributes:
        source: Reads the rows.
        rows: The rows.
        requested: Most records to keep.
        is_one_per_image: Whether no two of the records may show the same picture.
    """

    source: Source
    rows: Rows
    requested: int
    is_one_per_image: bool = False


@dataclass
class ShareReport:
    """What became of a share.

    Attributes:
        source: Name of the source.
        requested: Most records to keep.
        available: Rows of the source.
        examined: Rows that were read.
        kept: Records in the mixture.
        backfilled: Records among them that replace missing ones of other sources.
        dropped: Rows that were left out, by reason.
        examples: Names of the first of these rows, by reason.
        tags: Records in the mixture, by tag.
        licence: Licence of the source.
    """

    source: str
    requested: int
    available: int
    examined: int = 0
    kept: int = 0
    backfilled: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    licence: str = ""


class Entry(NamedTuple):
    """A kept row, without its content.

    Attributes:
        share: Number of its share.
        number: Number of the row.
        length: Characters of the prompt.
        picture: Hash of its pictures.
        content: Hash of what it shows, asks and answers.
    """

    share: int
    number: int
    length: int
    picture: str
    content: str


@dataclass
class Index:
    """The kept rows of a mixture.

    Attributes:
        entries: The rows, in order.
        reports: One report per share.
        manifest: Hash over the name and content of every record.
    """

    entries: list[Entry]
    reports: list[ShareReport]
    manifest: str

    @classmethod
    def of(cls, shares: Sequence[Share], entries: list[Entry], reports: list[ShareReport]) -> Index:
        """An index whose manifest is computed."""
        keys = [shares[entry.share].rows.key(entry.number) for entry in entries]
        return cls(entries, reports, hash_of(keys, entries))


def hash_of(keys: Sequence[str], entries: Sequence[Entry]) -> str:
    """The manifest: a hash over the name and content of every record, in order."""
    digest = hashlib.sha256()
    for key, entry in zip(keys, entries, strict=True):
        digest.update(f"{key} {entry.content}\n".encode())
    return digest.hexdigest()[:16]


def remembered(cache_dir: Path, settings: Mapping[str, object], build: Callable[[], Index]) -> Index:
    """An index from a cache, which is built if it is not there.

    Args:
        cache_dir: Folder of all caches.
        settings: All that the index depends on.
        build: Builds it.
    """
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = cache_dir / "mixtures" / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            advice = "Delete it; the rows are selected again."
            content = read_json(path, advice)
            try:
                return read_index(content)
            except (KeyError, TypeError) as error:
                raise damaged(path, repr(error), advice) from error
        index = build()
        write_whole(path, json.dumps(asdict(index)))
        return index


def read_index(saved: Mapping[str, list[object]]) -> Index:
    """An index from the form in which it is written."""
    reports = [ShareReport(**report) for report in saved["reports"]]  # type: ignore[arg-type]
    return Index([Entry(*entry) for entry in saved["entries"]], reports, str(saved["manifest"]))  # type: ignore[misc]
