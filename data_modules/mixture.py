"""Deterministic mixtures of sources: caps, filters, backfill, and a report of what was kept."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from filelock import FileLock
from torch.utils.data import Dataset

from data_modules.files import write_whole
from data_modules.filters import QuestionFilter
from data_modules.sources import Record, Row, SkipRow, Source

# Records of each source in the paper's two training stages; caps, not promises.
PAPER_SHARES: dict[str, dict[str, int]] = {
    "kd": {
        "llava": 40_000,
        "textvqa": 34_000,
        "scienceqa": 6_000,
        "docvqa": 5_000,
        "tallyqa": 5_000,
        "chartqa": 2_500,
    },
    "align": {
        "llava": 37_500,
        "textvqa": 20_000,
        "scienceqa": 5_000,
        "docvqa": 10_000,
        "tallyqa": 5_000,
        "chartqa": 2_500,
    },
}
BACKFILL = "llava"  # the source that makes up for a shortfall of the others (paper)


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
    """

    source: Source
    rows: Rows
    requested: int


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
    """

    source: str
    requested: int
    available: int
    examined: int = 0
    kept: int = 0
    backfilled: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass
class Index:
    """The kept rows of a mixture, without their content.

    Attributes:
        entries: (share, row number, characters of the question) of each record, in order.
        reports: One report per share.
        manifest: Hash over the name and content of every record.
    """

    entries: list[tuple[int, int, int]]
    reports: list[ShareReport]
    manifest: str


class Mixture(Dataset[Record]):
    """Records of several sources, each read from its row on access; any prefix has the same proportions.

    Args:
        name: Name of the split, for messages.
        shares: What to take from which source.
        question_filter: Decides which questions are kept; None keeps all.
        check: A further reason to drop a record, or None; such as a prompt that is too long.
        check_name: Changes whenever `check` decides differently.
        cache_dir: Folder that remembers which rows were kept; None to find out again each time.

    Raises:
        ValueError: If nothing is left after filtering.
    """

    def __init__(
        self,
        name: str,
        shares: Sequence[Share],
        question_filter: QuestionFilter | None = None,
        check: Callable[[Record], str | None] = lambda record: None,
        check_name: str = "",
        cache_dir: Path | None = None,
    ) -> None:
        self.name = name
        self.shares = list(shares)
        self.question_filter = question_filter
        self.check = check
        self.index = self._build() if cache_dir is None else self._cached(cache_dir, check_name)
        if not self.index.entries and any(share.requested for share in shares):
            raise ValueError(self._nothing_left())

    def __len__(self) -> int:
        return len(self.index.entries)

    def __getitem__(self, index: int) -> Record:
        """Reads one record from its row."""
        share, number, _ = self.index.entries[index]
        rows = self.shares[share].rows
        return self.shares[share].source.parse(rows[number], rows.key(number))

    @property
    def manifest(self) -> str:
        """Hash over the name and content of every record, in order."""
        return self.index.manifest

    @property
    def lengths(self) -> list[int]:
        """Characters of each record's question."""
        return [length for _, _, length in self.index.entries]

    def key(self, index: int) -> str:
        """Name of a record, without reading it."""
        share, number, _ = self.index.entries[index]
        return self.shares[share].rows.key(number)

    def report(self) -> str:
        """A table of what was requested, available, examined, dropped and kept."""
        lines = [f"{self.name}: {len(self)} records, manifest {self.manifest}"]
        columns = ("requested", "available", "examined", "kept", "backfilled", "missing")
        lines.append(f"{'source':<10}" + "".join(f"{column:>11}" for column in columns) + "  dropped")
        for report in self.index.reports:
            values = asdict(report) | {"missing": max(report.requested - report.kept, 0)}
            dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(report.dropped.items()))
            lines.append(
                f"{report.source:<10}" + "".join(f"{values[c]:>11}" for c in columns) + f"  {dropped}"
            )
        return "\n".join(lines)

    def _build(self) -> Index:
        draws = [_Draw(share, self._reason) for share in self.shares]
        for draw in draws:
            draw.take(draw.share.requested)
        missing = sum(draw.share.requested - draw.report.kept for draw in draws)
        for draw in draws:
            if draw.share.source.name == BACKFILL and missing:
                draw.report.backfilled = draw.take(missing)
        order = sorted(
            ((rank + 0.5) / len(draw.kept), share, rank)
            for share, draw in enumerate(draws)
            for rank in range(len(draw.kept))
        )
        entries, digest = [], hashlib.sha256()
        for _, share, rank in order:
            number, length, content = draws[share].kept[rank]
            entries.append((share, number, length))
            digest.update(f"{self.shares[share].rows.key(number)} {content}\n".encode())
        return Index(entries, [draw.report for draw in draws], digest.hexdigest()[:16])

    def _reason(self, record: Record) -> str | None:
        reason = self.question_filter.reason(record.prompt, record.answers) if self.question_filter else None
        return reason or self.check(record)

    def _cached(self, cache_dir: Path, check_name: str) -> Index:
        settings = {
            "shares": [
                (share.source.name, sorted(map(str, vars(share.source).items())), share.rows.fingerprint)
                for share in self.shares
            ],
            "requested": [share.requested for share in self.shares],
            "filter": asdict(self.question_filter) if self.question_filter else None,
            "check": check_name,
        }
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        path = cache_dir / "mixtures" / f"{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if path.exists():
                saved = json.loads(path.read_text())
                reports = [ShareReport(**report) for report in saved["reports"]]
                return Index([tuple(entry) for entry in saved["entries"]], reports, saved["manifest"])
            index = self._build()
            write_whole(path, json.dumps(asdict(index)))
            return index

    def _nothing_left(self) -> str:
        dropped: Counter[str] = Counter()
        for report in self.index.reports:
            dropped.update(report.dropped)
        reasons = ", ".join(f"{reason} ({count})" for reason, count in dropped.most_common())
        examined = sum(report.examined for report in self.index.reports)
        return (
            f"The {self.name} split is empty: {examined} rows were read and all dropped by "
            f"{reasons or 'nothing, as there are none'}. Loosen the filter, which is {self.question_filter}, "
            "or check the files of the sources."
        )


class _Draw:
    """Takes records from the rows of one share, in order.

    Attributes:
        kept: (row number, characters of the question, hash of the content) of each kept record.
    """

    def __init__(self, share: Share, reason: Callable[[Record], str | None]) -> None:
        self.share = share
        self.reason = reason
        self.kept: list[tuple[int, int, str]] = []
        self.report = ShareReport(share.source.name, share.requested, len(share.rows))

    def take(self, count: int) -> int:
        """Keeps up to `count` further records; returns how many."""
        report, before = self.report, len(self.kept)
        while len(self.kept) < before + count and report.examined < report.available:
            number = report.examined
            report.examined += 1
            try:
                record = self.share.source.parse(self.share.rows[number], self.share.rows.key(number))
                reason = self.reason(record)
            except SkipRow as skipped:
                reason = skipped.reason
            if reason:
                report.dropped[reason] = report.dropped.get(reason, 0) + 1
            else:
                self.kept.append((number, len(record.prompt), _content(record)))
        report.kept = len(self.kept)
        return report.kept - before


def _content(record: Record) -> str:
    """Hash of what a record shows and asks."""
    digest = hashlib.sha256("\x1f".join([record.prompt, *record.answers]).encode())
    for image in record.images:
        digest.update(f"{image.size}".encode() + image.tobytes())
    return digest.hexdigest()[:16]


def proportions(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Splits a total in proportion to weights, by largest remainders.

    Args:
        total: Number to split.
        weights: Weight of each part.
    """
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()}
    counts = {name: int(value) for name, value in exact.items()}
    rest = total - sum(counts.values())
    for name in sorted(exact, key=lambda part: counts[part] - exact[part])[:rest]:
        counts[name] += 1
    return counts
