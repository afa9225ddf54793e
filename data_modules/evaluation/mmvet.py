"""MM-Vet: open questions that need several abilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_modules.evaluation.base import EvaluationSet, given
from data_modules.sources import Row
from tiger.metrics.mmvet import MMVet as MMVetMetric
from tiger.metrics.mmvet import official_answers
from tiger.metrics.task import TaskMetric


class MMVet(EvaluationSet):
    """All 218 questions, graded by a rule or by the judge of the options; neither is the official grader."""

    name, id_column = "mmvet", "question_id"
    hub_ids = ("lmms-lab-encoder/MMVet", "lmms-lab/MMVet", "whyu/mm-vet")
    columns = ("question_id", "image", "question", "answer", "capability")
    instruction = (
        "First please perform reasoning, and think step by step to provide best answer to the following "
        "question: "
    )
    max_new_tokens = 1024

    def question(self, row: Row) -> str:
        """The question."""
        return str(row["question"])

    def score_text(self, row: Row) -> str:
        """The request to reason, then the question."""
        return f"{self.instruction}\n\n{self.question(row)}"

    def answers(self, row: Row) -> Sequence[str]:
        """The reference with its `<AND>` and `<OR>`."""
        return [given(row["answer"])]

    def group(self, row: Row) -> str:
        """The abilities, "ocr,math" and so on."""
        return given(row["capability"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """The mean grade."""
        return (MMVetMetric(self.options.judge),)

    def export(self, answers: Mapping[str, str]) -> str:
        """The answers as the official grader reads them."""
        return official_answers(answers)
