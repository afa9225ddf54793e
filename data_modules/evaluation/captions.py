"""COCO captions: the 2017 validation pictures and the Karpathy split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from data_modules.evaluation.base import Entry, EvaluationSet
from data_modules.sources import Row
from data_modules.sources.base import texts
from tiger.metrics.caption import CaptionAccuracy
from tiger.metrics.cider import Cider
from tiger.metrics.task import TaskMetric


class CocoCaption(EvaluationSet):
    """COCO 2017 validation: 5,000 pictures, five captions or more each; none is in train2017."""

    name, split = "coco_caption", "val"
    id_column: ClassVar[str | None] = "question_id"
    hub_ids: ClassVar[tuple[str, ...]] = ("lmms-lab-encoder/COCO-Caption2017", "lmms-lab/COCO-Caption2017")
    columns: ClassVar[tuple[str, ...]] = ("question_id", "image", "answer")
    instruction = "Provide a one-sentence caption for the provided image."
    speed_instruction = "Please provide a detailed description of the given image."
    max_new_tokens = 64

    def question(self, row: Row) -> str:
        """Nothing is asked but a caption."""
        return self.instruction

    def score_text(self, row: Row) -> str:
        """The request for a caption."""
        return self.instruction

    def speed_text(self, row: Row) -> str:
        """The request for a description."""
        return self.speed_instruction

    def answers(self, row: Row) -> Sequence[str]:
        """The captions."""
        return texts(row["answer"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """CIDEr-D and caption accuracy."""
        return (Cider(), CaptionAccuracy())


class CocoKarpathy(CocoCaption):
    """Karpathy's test split of COCO 2014, whose rows name pictures under `media_root`.

    These pictures are in train2017, on which LLaVA's data are made: mind the overlap. Copies with one row per
    caption are joined by picture.
    """

    name, split, id_column = "coco_karpathy", "test", None
    hub_ids = ("yerevann/coco-karpathy",)
    columns = ("filepath", "filename", "imgid", "sentences")
    instruction = "Describe the image briefly."

    def units(self) -> list[list[Entry]]:
        """One entry per picture, at its first row."""
        self.places: dict[int, list[int]] = {}
        for number, picture in enumerate(self.rows["imgid"]):
            self.places.setdefault(picture, []).append(number)
        return [[(numbers[0], 0)] for numbers in self.places.values()]

    def key(self, entry: Entry, row: Row) -> str:
        """The number of the picture."""
        return str(row["imgid"])

    def answers(self, row: Row) -> Sequence[str]:
        """The captions of all rows of the picture."""
        rows = (self.rows[number] for number in self.places[row["imgid"]])
        return [caption for other in rows for caption in texts(other["sentences"])]

    def pictures(self, row: Row) -> Sequence[Any]:
        """The path of the picture."""
        return [str(Path(row["filepath"]) / row["filename"])]
