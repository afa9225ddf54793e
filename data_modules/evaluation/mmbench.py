"""MMBench: multiple choice, each question also with its options in other orders (CircularEval)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from data_modules.evaluation.base import LETTER, Entry, EvaluationSet, given, listed
from data_modules.sources import Row
from tiger.metrics.multiple_choice import CircularChoice, MultipleChoice
from tiger.metrics.task import TaskMetric

COPY = 1_000_000  # a copy's index is that of its question plus a multiple of this


class MMBench(EvaluationSet):
    """Dev split in English with all copies; letters are read by rules, never by a judge.

    The limit counts questions; their copies come with them.
    """

    name = "mmbench"
    hub_ids = ("lmms-lab-encoder/MMBench", "lmms-lab/MMBench")
    config, split, id_column = "en", "dev", "index"
    columns: ClassVar[tuple[str, ...]] = ("index", "question", "hint", "answer", *"ABCD", "image")
    instruction = f"\n{LETTER}"
    max_new_tokens = 1024

    def units(self) -> list[list[Entry]]:
        """The rows of each question, the original first."""
        indices = [int(index) for index in self.rows["index"]]
        rows: dict[int, list[int]] = {}
        for number in sorted(range(len(indices)), key=lambda row: indices[row]):
            rows.setdefault(indices[number] % COPY, []).append(number)
        return [[(number, 0) for number in numbers] for numbers in rows.values()]

    def question(self, row: Row) -> str:
        """Hint, question and options."""
        words = " ".join(filter(None, (given(row["hint"]), row["question"])))
        return f"{words} There are several options:\n{listed(self.choices(row))}"

    def choices(self, row: Row) -> Mapping[str, str]:
        """The options that are not missing."""
        texts = {letter: given(row[letter]) for letter in "ABCD"}
        return {letter: text for letter, text in texts.items() if text}

    def answers(self, row: Row) -> Sequence[str]:
        """The right letter; hidden in the test split."""
        return [given(row["answer"])]

    def group(self, row: Row) -> str:
        """The index of the original."""
        return str(int(row["index"]) % COPY)

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Circular and vanilla accuracy."""
        return (CircularChoice("lmms"),)


class MMBenchVanilla(MMBench):
    """The same questions without their copies; one sample each, reported by category."""

    name = "mmbench_vanilla"
    columns = (*MMBench.columns, "category")

    def units(self) -> list[list[Entry]]:
        """The originals."""
        return [[unit[0]] for unit in super().units() if int(self.rows[unit[0][0]]["index"]) < COPY]

    def group(self, row: Row) -> str:
        """The category."""
        return given(row["category"])

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Accuracy, overall and by category."""
        return (MultipleChoice("lmms"),)
