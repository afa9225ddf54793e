"""ScienceQA: multiple choice with solutions."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from data_modules.sources.base import Row, Source, texts


class ScienceQA(Source):
    """Rows of `derek-thomas/ScienceQA` or `lmms-lab/ScienceQA`; rows without a picture are skipped.

    Args:
        with_choices: Whether hint and lettered choices are part of the prompt.
        options: As for `Source`.
    """

    name = "scienceqa"
    licence = "CC BY-NC-SA 4.0"
    repos = ("derek-thomas/ScienceQA",)
    columns = (("image", "question", "choices", "answer"),)

    def __init__(self, with_choices: bool = False, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.with_choices = with_choices

    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question, and the solution followed by the right choice."""
        choices, index = texts(row["choices"]), row.get("answer")
        right = [] if index is None or index < 0 else [choices[index]]
        return row["question"], [*texts(row.get("solution")), *right]

    def prompt(self, row: Row, question: str) -> str:
        """The question, between hint and lettered choices if these are shown."""
        if not self.with_choices:
            return question
        hint, choices = row.get("hint") or "", texts(row["choices"])
        lines = [f"{letter}. {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)]
        return "\n".join([*([hint] if hint not in ("", "nan") else []), question, *lines])
