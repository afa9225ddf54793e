"""TallyQA: counting questions; the paper's mixtures take those on COCO images."""

from __future__ import annotations

from collections.abc import Sequence

from data_modules.sources.base import Row, SkipRow, Source, texts

COCO_FOLDERS = ("train2014/", "val2014/")


class TallyQA(Source):
    """Entries of the original `train.json`, or rows grouped by image.

    A path outside the COCO folders is skipped; a row that holds the picture itself cannot tell and is kept.
    A row's `full_answer`, if any, is the target in place of the bare number.
    """

    name = "tallyqa"
    licence = "Apache-2.0, images CC BY 4.0"

    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question, and the full answer followed by the number."""
        image = row.get("image")
        if isinstance(image, str) and not image.startswith(COCO_FOLDERS):
            raise SkipRow("not_coco")
        return row["question"], [*texts(row.get("full_answer")), *texts(row.get("answer"))]
