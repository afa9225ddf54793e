"""ScienceQA, questions with a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_modules.evaluation.base import LETTER, EvaluationSet, given, lettered, listed
from data_modules.sources import Row
from tiger.metrics.multiple_choice import MultipleChoice
from tiger.metrics.task import TaskMetric


class ScienceQAImage(EvaluationSet):
    """Test questions with a picture, by subject."""

    name = "scienceqa"
    hub_ids = ("lmms-lab-encoder/ScienceQA", "lmms-lab/ScienceQA")
    config = "ScienceQA-IMG"
    columns = ("image", "question", "choices", "answer", "hint", "subject")
    instruction = LETTER

    def question(self, row: Row) -> str:
        """Context, question and options."""
        hint = given(row["hint"])
        context = f"Context: {hint}\n" if hint else ""
        return f"{context}{row['question']}\n{listed(self.choices(row))}"

    def choices(self, row: Row) -> Mapping[str, str]:
        """The options."""
        return lettered(row["choices"])

    def answers(self, row: Row) -> Sequence[str]:
        """The right letter."""
        return [list(self.choices(row))[int(row["answer"])]]

    def group(self, row: Row) -> str:
        """The subject."""
        return given(row["subject"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy, overall and by subject."""
        return (MultipleChoice("scienceqa"),)
