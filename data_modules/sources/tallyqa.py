"""TallyQA: counting questions; the paper's mixtures take those on COCO images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from data_modules.sources.base import Row, Source, texts
from data_modules.sources.record import Picture, SkipRow, picture

_COCO_2014 = re.compile(r"(?:train|val)2014/COCO_(?:train|val)2014_(\d{12}\.jpg)")


class TallyQA(Source):
    """Entries of the original `train.json`, or rows grouped by image.

    A path outside of COCO is skipped; a row that holds the picture itself cannot tell and is kept.
    A row's `full_answer`, if any, is the target in place of the bare number.

    Args:
        only_train2017: Whether a picture is taken from the folder `train2017`, which no evaluation set on
            `val2017` shares, in place of the folder of 2014 that the row names.
        image_root: Folder that holds `train2017`, or `train2014` and `val2014`.
        require_answers: As for `Source`.
    """

    name = "tallyqa"
    licence = "Apache-2.0, images CC BY 4.0"
    repos = ()  # no data set on the hub keeps the file names that tell COCO from Visual Genome
    columns = (("image", "question", "answer"),)

    def __init__(
        self,
        image_root: str | Path | None = None,
        require_answers: bool = True,
        only_train2017: bool = True,
    ) -> None:
        super().__init__(image_root, require_answers)
        self.only_train2017 = only_train2017

    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question, and the full answer followed by the number."""
        image = row.get("image")
        if isinstance(image, str) and not _COCO_2014.fullmatch(image):
            raise SkipRow("not_coco")
        return row["question"], [*texts(row.get("full_answer")), *texts(row.get("answer"))]

    def images(self, row: Row) -> tuple[Picture, ...]:
        """The pictures of a row, by their names of 2017 if only those are allowed."""
        name = row.get("image")
        if not self.only_train2017 or not isinstance(name, str):
            return super().images(row)
        return (picture(_COCO_2014.sub(r"train2017/\1", name), self.image_root),)
