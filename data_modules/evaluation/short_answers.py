"""Sets of open questions with short answers: TextVQA, DocVQA, ChartQA, GQA and POPE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_modules.evaluation.base import READ, SHORT, EvaluationSet, given
from data_modules.hub import open_rows, require_columns
from data_modules.sources import Row
from data_modules.sources.base import texts
from tiger.metrics.anls import Anls
from tiger.metrics.exact_match import ExactMatch
from tiger.metrics.pope import Pope as PopeMetric
from tiger.metrics.relaxed_accuracy import RelaxedAccuracy
from tiger.metrics.task import TaskMetric
from tiger.metrics.vqa import VqaAccuracy


class TextVQA(EvaluationSet):
    """Validation split of TextVQA, without OCR tokens in the prompt; the test answers are not public."""

    name, split, id_column = "textvqa", "validation", "question_id"
    hub_ids = ("lmms-lab-encoder/textvqa", "lmms-lab/textvqa")
    columns = ("question_id", "question", "image", "answers")
    instruction, speed_instruction = SHORT, READ
    max_new_tokens = 128  # lmms-eval sets no limit

    def question(self, row: Row) -> str:
        """The question in sentence case, as lmms-eval asks it."""
        return str(row["question"]).capitalize()

    def answers(self, row: Row) -> Sequence[str]:
        """Ten answers."""
        return texts(row["answers"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """VQA soft accuracy."""
        return (VqaAccuracy("evalai"),)


class DocVQA(EvaluationSet):
    """Validation split of DocVQA; the paper's mixtures train on it, so mind the overlap."""

    name, split, config, id_column = "docvqa", "validation", "DocVQA", "questionId"
    hub_ids = ("lmms-lab-encoder/DocVQA", "lmms-lab/DocVQA")
    columns = ("questionId", "question", "image", "answers")
    instruction, speed_instruction = SHORT, READ
    max_new_tokens = 32

    def question(self, row: Row) -> str:
        """The question."""
        return str(row["question"])

    def answers(self, row: Row) -> Sequence[str]:
        """All accepted answers; the test split has none."""
        return texts(row["answers"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """ANLS."""
        return (Anls(),)


class ChartQA(EvaluationSet):
    """Test split of ChartQA, human and augmented; the paper's mixtures train on it, so mind the overlap.

    Reads `lmms-lab/ChartQA` (question, answer, type) and `HuggingFaceM4/ChartQA` (query, label,
    human_or_machine).
    """

    name = "chartqa"
    hub_ids = ("lmms-lab-encoder/ChartQA", "lmms-lab/ChartQA", "HuggingFaceM4/ChartQA")
    columns = ("image",)
    instruction = "Answer the question with a single word."

    def open(self) -> Any:
        """Opens the rows; either schema will do."""
        rows = super().open()
        own = ("query", "label", "human_or_machine")
        schema = own if "query" in rows.column_names else ("question", "answer", "type")
        require_columns(rows.column_names, schema, self.name)
        return rows

    def question(self, row: Row) -> str:
        """The question."""
        return str(row["query"] if "query" in row else row["question"])

    def answers(self, row: Row) -> Sequence[str]:
        """The answer."""
        return texts(row["label"] if "label" in row else row["answer"])

    def group(self, row: Row) -> str:
        """Human or augmented."""
        if "type" in row:
            return "human" if row["type"] == "human_test" else "augmented"
        return ("human", "augmented")[row["human_or_machine"]]

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Relaxed accuracy, overall and by group."""
        return (RelaxedAccuracy(),)


class GQA(EvaluationSet):
    """Balanced test-dev questions of GQA, joined with the pictures of a second configuration."""

    name, split, config, id_column = "gqa", "testdev", "testdev_balanced_instructions", "id"
    hub_ids = ("lmms-lab-encoder/GQA", "lmms-lab/GQA")
    columns = ("id", "imageId", "question", "answer")
    instruction = SHORT

    def open(self) -> Any:
        """Opens questions and pictures."""
        rows = super().open()
        given = self.options
        names, split = given.hub_ids or self.hub_ids, given.split or self.split
        self.images = open_rows(names, given.path, split, "testdev_balanced_images")
        require_columns(self.images.column_names, ("id", "image"), f"{self.name} pictures")
        self.places = {name: number for number, name in enumerate(self.images["id"])}
        return rows

    def question(self, row: Row) -> str:
        """The question."""
        return str(row["question"])

    def answers(self, row: Row) -> Sequence[str]:
        """The answer."""
        return texts(row["answer"])

    def pictures(self, row: Row) -> Sequence[Any]:
        """The picture of that id, or None."""
        place = self.places.get(row["imageId"])
        return [None if place is None else self.images[place]["image"]]

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Exact match."""
        return (ExactMatch(),)


class Pope(EvaluationSet):
    """POPE: yes or no questions about objects, in three categories."""

    name = "pope"
    hub_ids = ("lmms-lab-encoder/POPE", "lmms-lab/POPE")
    columns = ("question", "answer", "image", "category")
    instruction = SHORT

    def question(self, row: Row) -> str:
        """The question."""
        return str(row["question"])

    def answers(self, row: Row) -> Sequence[str]:
        """Yes or no."""
        return [given(row["answer"])]

    def group(self, row: Row) -> str:
        """Adversarial, popular or random."""
        return given(row["category"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy, precision, recall, F1 and the ratio of yes."""
        return (PopeMetric(),)
