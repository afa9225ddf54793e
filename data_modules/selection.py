"""Selects the records of a mixture: caps, filters, duplicates, backfill, and an account of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.progress import track

from data_modules.filters import QuestionFilter
from data_modules.index import Entry, Index, Share, ShareReport
from data_modules.sources import Record, SkipRow

BACKFILL = "llava"  # the source that makes up for a shortfall of the others (paper)
NUM_EXAMPLES = 5  # rows that a report names for each reason
FEW_ROWS = 100  # from here on, most pictures missing means a wrong folder


def no_check(record: Record) -> str | None:
    """Keeps every record."""
    return None


def select(
    name: str,
    shares: Sequence[Share],
    question_filter: QuestionFilter | None = None,
    check: Callable[[Record], str | None] = no_check,
) -> Index:
    """Selects records in the order of their rows; any prefix of the result has the same proportions.

    Args:
        name: Name of the mixture, for messages.
        shares: What to take from which source.
        question_filter: Decides which questions are kept; None keeps all.
        check: A further reason to drop a record, or None.

    Raises:
        ValueError: If nothing is left after filtering, or most pictures of a folder are missing.
    """

    def reason(record: Record) -> str | None:
        words = (record.question, record.answers, record.prompt)
        return (question_filter.reason(*words) if question_filter else None) or check(record)

    seen: set[str] = set()
    draws = [_Draw(number, share, reason, seen) for number, share in enumerate(shares)]
    for draw in track(draws, description=f"Sources of {name}", transient=True):
        draw.take(draw.share.requested)
    missing = sum(draw.share.requested - draw.report.kept for draw in draws)
    for draw in draws:
        if draw.share.source.name == BACKFILL and missing:
            draw.report.backfilled = draw.take(missing)
    reports = [draw.report for draw in draws]
    entries = _interleaved([draw.kept for draw in draws])
    if not entries and any(share.requested for share in shares):
        raise ValueError(_nothing_left(name, reports, question_filter))
    return Index.of(shares, entries, reports)


class _Draw:
    """Takes records from the rows of one share, in order."""

    def __init__(
        self, number: int, share: Share, reason: Callable[[Record], str | None], seen: set[str]
    ) -> None:
        self.number, self.share, self.reason = number, share, reason
        self.seen = seen  # of all shares: picture and question of each record
        self.pictures: set[str] = set()
        self.kept: list[Entry] = []
        source = share.source
        self.report = ShareReport(source.name, share.requested, len(share.rows), licence=source.licence)

    def take(self, count: int) -> int:
        """Keeps up to `count` further records; returns how many."""
        report, before = self.report, len(self.kept)
        while len(self.kept) < before + count and report.examined < report.available:
            number = report.examined
            report.examined += 1
            try:
                record = self.share.source.parse(self.share.rows[number], self.share.rows.key(number))
                reason, detail = self.reason(record) or self._duplicate(record), ""
            except SkipRow as skipped:
                reason, detail = skipped.reason, skipped.detail
            if reason:
                self._drop(reason, f"{self.share.rows.key(number)} {detail}".strip())
            else:
                self._keep(record, number)
        report.kept = len(self.kept)
        return report.kept - before

    def _duplicate(self, record: Record) -> str | None:
        if self.share.is_one_per_image and record.picture in self.pictures:
            return "same_image"
        return "duplicate" if record.picture + record.question in self.seen else None

    def _keep(self, record: Record, number: int) -> None:
        self.seen.add(record.picture + record.question)
        self.pictures.add(record.picture)
        self.kept.append(Entry(self.number, number, len(record.prompt), record.picture, record.content))
        self.report.tags[record.tag] = self.report.tags.get(record.tag, 0) + 1

    def _drop(self, reason: str, row: str) -> None:
        dropped, examples = self.report.dropped, self.report.examples
        dropped[reason] = dropped.get(reason, 0) + 1
        if len(examples.setdefault(reason, [])) < NUM_EXAMPLES:
            examples[reason].append(row)
        missing, found = dropped.get("missing_image", 0), len(self.kept)
        if reason == "missing_image" and missing + found >= FEW_ROWS and missing > found:
            paths = ", ".join(row.split(" ", 1)[1] for row in examples[reason])
            raise ValueError(
                f"{self.report.source}: {missing / (missing + found):.0%} of the pictures are missing in "
                f"{self.share.source.image_root}; the first are {paths}. Set image_root to the folder that "
                "the paths in the rows start from."
            )


def _interleaved(shares: Sequence[Sequence[Entry]]) -> list[Entry]:
    """All entries, those of each share spread evenly."""
    order = sorted(
        ((rank + 0.5) / len(kept), share, rank)
        for share, kept in enumerate(shares)
        for rank in range(len(kept))
    )
    return [shares[share][rank] for _, share, rank in order]


def _nothing_left(name: str, reports: Sequence[ShareReport], question_filter: QuestionFilter | None) -> str:
    dropped: Counter[str] = Counter()
    for report in reports:
        dropped.update(report.dropped)
    reasons = ", ".join(f"{reason} ({count})" for reason, count in dropped.most_common())
    examined = sum(report.examined for report in reports)
    return (
        f"The {name} split is empty: {examined} rows were read and all dropped by "
        f"{reasons or 'nothing, as there are none'}. Loosen the filter, which is {question_filter}, "
        "or check the files of the sources."
    )
