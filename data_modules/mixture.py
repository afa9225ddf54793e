"""A mixture: the selected records of several sources, each read from its row on access."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from torch.utils.data import Dataset

from data_modules.filters import QuestionFilter
from data_modules.index import Index, Share, ShareReport, remembered
from data_modules.reports import markdown
from data_modules.selection import no_check, select
from data_modules.sources import Record

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


class Mixture(Dataset[Record]):
    """Selected records, read on access.

    Args:
        name: Name of the split, for messages.
        shares: What was taken from which source.
        index: Which rows were taken.
    """

    def __init__(self, name: str, shares: Sequence[Share], index: Index) -> None:
        self.name, self.shares, self.index = name, list(shares), index

    def __len__(self) -> int:
        return len(self.index.entries)

    def __getitem__(self, index: int) -> Record:
        """Reads one record from its row.

        Raises:
            ValueError: If the row is not what it was when it was selected.
        """
        entry = self.index.entries[index]
        share = self.shares[entry.share]
        record = share.source.parse(share.rows[entry.number], share.rows.key(entry.number))
        if record.content != entry.content:
            raise ValueError(
                f"{record.id} is not what it was when the mixture was built: its data set has changed. "
                "Build the mixture again."
            )
        return record

    @property
    def manifest(self) -> str:
        """Hash over the name and content of every record, in order."""
        return self.index.manifest

    @property
    def lengths(self) -> list[int]:
        """Characters of each record's prompt."""
        return [entry.length for entry in self.index.entries]

    def key(self, index: int) -> str:
        """Name of a record, without reading it."""
        entry = self.index.entries[index]
        return self.shares[entry.share].rows.key(entry.number)

    def report(self) -> str:
        """A Markdown table of what was requested, available, examined, dropped and kept."""
        return markdown(self.name, len(self), self.manifest, self.index.reports)

    def subset(self, name: str, indices: Sequence[int]) -> Mixture:
        """A mixture of some of the records, in the given order.

        Args:
            name: Name of the split, for messages.
            indices: Which records.
        """
        entries = [self.index.entries[index] for index in indices]
        return Mixture(name, self.shares, Index.of(self.shares, entries, self.index.reports))

    def narrow(self, check: Callable[[Record], str | None], check_name: str, cache_dir: Path) -> Mixture:
        """The mixture without the records that a check drops, which the reports then count.

        Args:
            check: Reason to drop a record, or None.
            check_name: Changes whenever `check` decides differently.
            cache_dir: Folder that remembers the result.
        """
        settings = {"mixture": self.manifest, "check": check_name}
        index = remembered(cache_dir, settings, lambda: self._narrowed(check))
        if not index.entries:
            raise ValueError(f"The {self.name} split is empty: all records were dropped by {check_name}.")
        return Mixture(self.name, self.shares, index)

    def _narrowed(self, check: Callable[[Record], str | None]) -> Index:
        reports = [ShareReport(**asdict(report)) for report in self.index.reports]
        kept = []
        for number, entry in enumerate(self.index.entries):
            record, report = self[number], reports[entry.share]
            if (reason := check(record)) is None:
                kept.append(entry)
                continue
            report.kept -= 1
            report.tags[record.tag] -= 1
            report.dropped[reason] = report.dropped.get(reason, 0) + 1
        return Index.of(self.shares, kept, reports)


def mix(
    name: str,
    shares: Sequence[Share],
    question_filter: QuestionFilter | None = None,
    check: Callable[[Record], str | None] = no_check,
    check_name: str = "",
    cache_dir: Path | None = None,
) -> Mixture:
    """Selects a mixture.

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
    if cache_dir is None:
        return Mixture(name, shares, select(name, shares, question_filter, check))
    settings = {
        "shares": [
            (share.source.name, sorted(map(str, vars(share.source).items())), share.rows.fingerprint)
            for share in shares
        ],
        "requested": [share.requested for share in shares],
        "one_per_image": [share.is_one_per_image for share in shares],
        "filter": asdict(question_filter) if question_filter else None,
        "check": check_name,
    }
    index = remembered(cache_dir, settings, lambda: select(name, shares, question_filter, check))
    return Mixture(name, shares, index)


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
