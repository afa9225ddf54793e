"""From a row of a public data set to a `Record`, or to the reason why the row cannot be used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from data_modules.filters import question_tag
from data_modules.sources.record import Picture, Record, SkipRow, picture

Row = Mapping[str, Any]

GROUPED = ("texts", "images")  # columns of rows grouped by image, as in the_cauldron and FineVision


class Source(ABC):
    """Reads the rows of one data set.

    Args:
        image_root: Folder of the images, for rows that hold a path in place of a picture.
        require_answers: Whether a row without an answer is skipped; the verifier's own answers need none.

    Attributes:
        name: Name of the source.
        licence: Licence of the data set.
        repos: Hub ids of the data set, those of today first.
        config: Configuration of the hub data set, if it has several.
        file: A file of the hub repository that holds the rows, where the repository is no data set itself.
        columns: Columns that are read, one tuple for each schema the data set is published in.
    """

    name: ClassVar[str]
    licence: ClassVar[str]
    repos: ClassVar[tuple[str, ...]]
    config: ClassVar[str | None] = None
    file: ClassVar[str | None] = None
    columns: ClassVar[tuple[tuple[str, ...], ...]]

    def __init__(self, image_root: str | Path | None = None, require_answers: bool = True) -> None:
        self.image_root = Path(image_root or ".")
        self.require_answers = require_answers

    @classmethod
    def check_columns(cls, found: Sequence[str]) -> None:
        """Checks that a data set has the columns of one of the known schemas.

        Raises:
            ValueError: If not; naming the expected and the found columns.
        """
        known = (*cls.columns, GROUPED)
        if not any(set(columns) <= set(found) for columns in known):
            expected = " or ".join("(" + ", ".join(columns) + ")" for columns in known)
            raise ValueError(
                f"{cls.name}: expected the columns {expected}, found ({', '.join(found)}). Name a data set "
                "of one of these schemas."
            )

    def parse(self, row: Row, key: str) -> Record:
        """Reads a row; its pictures are not decoded.

        Args:
            row: The row, in any of the schemas the source is published in.
            key: Name of the row, unique in its mixture.

        Raises:
            SkipRow: If the row cannot be used; nothing else is raised for bad data.
        """
        try:
            question, answers = self.read_turn(row) if "texts" in row else self.read(row)
            question = question.replace("<image>", "").strip()
            answers = tuple(answer.strip() for answer in answers if answer.strip())
            prompt = self.prompt(row, question)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise error if isinstance(error, SkipRow) else SkipRow("malformed") from error
        if not question:
            raise SkipRow("no_question")
        if self.require_answers and not answers:
            raise SkipRow("no_answer")
        tag = question_tag(question, self.name)
        return Record(self.images(row), question, prompt, answers, self.name, key, tag, self.licence)

    @abstractmethod
    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question of a row and its reference answers, the training target first."""

    def read_turn(self, row: Row) -> tuple[str, Sequence[str]]:
        """The first question and answer of a row grouped by image."""
        texts = row["texts"]
        turn = {k: v[0] for k, v in texts.items()} if isinstance(texts, Mapping) else texts[0]
        return turn["user"], [turn["assistant"]]

    def prompt(self, row: Row, question: str) -> str:
        """What is asked: the question, unless the source adds to it."""
        return question

    def images(self, row: Row) -> tuple[Picture, ...]:
        """The pictures of a row.

        Raises:
            SkipRow: If there is none or one cannot be read.
        """
        values = row.get("images") or [row.get("image")]
        found = tuple(picture(value, self.image_root) for value in values if value is not None)
        if not found:
            raise SkipRow("no_image")
        return found


def texts(value: Any) -> list[str]:
    """A list of strings from a string, a number, a list of either, or None."""
    if value is None:
        return []
    return (
        [str(item) for item in value if item is not None] if isinstance(value, list | tuple) else [str(value)]
    )
