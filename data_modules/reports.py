"""The report of a mixture as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from data_modules.filters import TAGS

if TYPE_CHECKING:
    from data_modules.index import ShareReport

COUNTS = ("requested", "available", "examined", "kept", "backfilled", "missing")
NAMED = ("unreadable_image", "missing_image", "malformed")  # reasons for which a report names rows


def markdown(name: str, num_records: int, manifest: str, reports: Sequence[ShareReport]) -> str:
    """What was requested, available, dropped by reason and kept, with the shares of the tags.

    Args:
        name: Name of the mixture.
        num_records: Its records.
        manifest: Its hash.
        reports: What became of each share.
    """
    rows = [_counts(report) for report in reports]
    total = [str(sum(int(row[column]) for row in rows)) for column in range(1, len(COUNTS) + 1)]
    lines = [
        f"{name}: {num_records:,} records, manifest {manifest}",
        "",
        *_table(["source", *COUNTS, "dropped"], [*rows, ["all", *total, ""]]),
        "",
        *_table(["source", *TAGS, "licence"], [_tags(report) for report in reports]),
    ]
    for report in reports:
        for reason in NAMED:
            if names := report.examples.get(reason):
                count = report.dropped[reason]
                lines += ["", f"{report.source}, {reason} ({count}), the first: {'; '.join(names)}"]
    return "\n".join(lines)


def _counts(report: ShareReport) -> list[str]:
    values = asdict(report) | {"missing": max(report.requested - report.kept, 0)}
    dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(report.dropped.items()))
    return [report.source, *(str(values[column]) for column in COUNTS), dropped]


def _tags(report: ShareReport) -> list[str]:
    return [report.source, *(_percent(report.tags, tag, report.kept) for tag in TAGS), report.licence]


def _percent(tags: Mapping[str, int], tag: str, kept: int) -> str:
    return f"{100 * tags.get(tag, 0) / kept:.1f} %" if kept else "-"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, its columns aligned; all but the first and last are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(cells[1:-1], widths[1:-1], strict=True)]
        return "| " + " | ".join([cells[0].ljust(widths[0]), *numbers, cells[-1].ljust(widths[-1])]) + " |"

    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:-1]), "-" * widths[-1]]
    return [line(header), line(rules), *(line(row) for row in rows)]
