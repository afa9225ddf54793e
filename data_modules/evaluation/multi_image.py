"""Sets of questions about several pictures: MuirBench and NLVR2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from data_modules.evaluation.base import LETTER, EvaluationSet, given, lettered, listed
from data_modules.hub import require_columns
from data_modules.sources import Row
from tiger.backbones.chat import IMAGE
from tiger.metrics.multiple_choice import MultipleChoice
from tiger.metrics.nlvr2 import Nlvr2 as Nlvr2Metric
from tiger.metrics.task import TaskMetric


class MuirBench(EvaluationSet):
    """MuirBench: multiple choice about several pictures, which stand where question and options name them."""

    name, id_column = "muirbench", "idx"
    hub_ids = ("MUIRBENCH/MUIRBENCH",)
    columns = ("idx", "task", "question", "options", "answer", "image_list")
    instruction = LETTER

    def question(self, row: Row) -> str:
        """Question and options; pictures stand first if there is not one marker for each of them."""
        text = f"{row['question']}\n{listed(self.choices(row))}"
        return text if text.count(IMAGE) == len(row["image_list"]) else text.replace(IMAGE, "")

    def choices(self, row: Row) -> Mapping[str, str]:
        """The options."""
        return lettered(row["options"])

    def answers(self, row: Row) -> Sequence[str]:
        """The right letter."""
        return [given(row["answer"])]

    def group(self, row: Row) -> str:
        """The task."""
        return given(row["task"])

    def pictures(self, row: Row) -> Sequence[Any]:
        """All pictures, in order."""
        return list(row["image_list"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy, overall and by task."""
        return (MultipleChoice("muirbench"),)


class NLVR2(EvaluationSet):
    """NLVR2: is a statement about two pictures true?

    `path` is `dev.json`, `test1.json` or `test2.json` of the original repository (JSON Lines), `media_root`
    the folder of the pictures, which their authors give out on request; hub copies are scripts or lack the
    names that consistency needs.
    """

    name, id_column = "nlvr2", "identifier"
    columns = ("sentence", "label", "identifier")
    instruction = "Answer true or false."

    def open(self) -> Any:
        """Reads the columns that are needed; the others differ from line to line."""
        if self.options.path is None or not self.options.path.is_file():
            raise FileNotFoundError(
                f"NLVR2 is read from a file of its repository, such as nlvr2/data/test1.json; its path is "
                f"{self.options.path}. Give that file as path and the folder of the pictures as media_root."
            )
        with self.options.path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        require_columns(list(rows[0]) if rows else [], self.columns, self.name)
        return [{name: row[name] for name in self.columns} for row in rows]

    def question(self, row: Row) -> str:
        """The statement."""
        return f"Here is a statement about the images. Is it true or false?\n{row['sentence']}"

    def answers(self, row: Row) -> Sequence[str]:
        """True or False."""
        return [given(row["label"])]

    def group(self, row: Row) -> str:
        """The statement: an identifier such as `test1-0-1-0` without the number of the picture pair."""
        split, places, _, sentence = row["identifier"].split("-")
        return f"{split}-{places}-{sentence}"

    def pictures(self, row: Row) -> Sequence[Any]:
        """Left and right picture."""
        pair = row["identifier"].rsplit("-", 1)[0]
        return [f"{pair}-img{side}.png" for side in (0, 1)]

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy and consistency."""
        return (Nlvr2Metric(),)
