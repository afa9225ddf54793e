"""TallyQA: counting questions."""

from __future__ import annotations

from collections.abc import Sequence

from data_modules.evaluation.base import SHORT, Entry, EvaluationSet
from data_modules.sources import Row
from data_modules.sources.base import texts
from tiger.metrics.counting import CountingAccuracy
from tiger.metrics.task import TaskMetric


class TallyQA(EvaluationSet):
    """Test split of TallyQA, simple and complex questions.

    Reads `vikhyatk/tallyqa-test` (one row per picture, its questions in `qa`) and the original `test.json`
    (one row per question, the picture a path under `media_root`).
    """

    name = "tallyqa"
    hub_ids = ("vikhyatk/tallyqa-test",)
    columns = ("image",)
    instruction = SHORT

    def units(self) -> list[list[Entry]]:
        """Every question of every row."""
        if "qa" not in self.rows.column_names:
            return super().units()
        turns = self.rows.select_columns("qa")
        return [[(number, turn)] for number, row in enumerate(turns) for turn in range(len(row["qa"]))]

    def row(self, entry: Entry) -> Row:
        """The picture with one of its questions."""
        row = super().row(entry)
        return {"image": row["image"], **row["qa"][entry[1]]} if "qa" in row else row

    def key(self, entry: Entry, row: Row) -> str:
        """The number of the question, else of row and question."""
        return str(row["question_id"]) if "question_id" in row else f"{entry[0]}-{entry[1]}"

    def question(self, row: Row) -> str:
        """The question."""
        return str(row["question"])

    def answers(self, row: Row) -> Sequence[str]:
        """The number."""
        return texts(row["answer"])

    def group(self, row: Row) -> str:
        """Simple or complex."""
        return "simple" if row["is_simple" if "is_simple" in row else "issimple"] else "complex"

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy of counts, overall and by group."""
        return (CountingAccuracy(),)
