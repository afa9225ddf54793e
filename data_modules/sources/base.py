"""From a row of a public data set to a `Record`, or to the reason why the row cannot be used."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from data_modules.filters import question_tag

Row = Mapping[str, Any]

LARGEST_ASPECT = 200  # image processors of the Qwen family refuse longer strips


@dataclass(frozen=True)
class Record:
    """One question about one or more pictures.

    Attributes:
        images: RGB pictures.
        prompt: The question as the source has it, without image placeholders.
        answers: Reference answers, the training target first; empty where the source has none.
        source: Name of the source.
        id: Name of the row, unique in a mixture.
        tag: One of `TAGS`.
        licence: Licence of the source.
    """

    images: tuple[Image.Image, ...]
    prompt: str
    answers: tuple[str, ...]
    source: str
    id: str
    tag: str
    licence: str


class SkipRow(ValueError):
    """A row cannot be used.

    Attributes:
        reason: A short name, counted in the report of a mixture.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Source(ABC):
    """Reads the rows of one data set.

    Args:
        image_root: Folder of the images, for rows that hold a path in place of a picture.
        require_answers: Whether a row without an answer is skipped; the verifier's own answers need none.
    """

    name: ClassVar[str]
    licence: ClassVar[str]

    def __init__(self, image_root: str | Path | None = None, require_answers: bool = True) -> None:
        self.image_root = Path(image_root or ".")
        self.require_answers = require_answers

    def parse(self, row: Row, key: str) -> Record:
        """Reads a row.

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
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise error if isinstance(error, SkipRow) else SkipRow("malformed") from error
        if not question:
            raise SkipRow("no_question")
        if self.require_answers and not answers:
            raise SkipRow("no_answer")
        return Record(
            self.images(row),
            question,
            answers,
            self.name,
            key,
            question_tag(question, self.name),
            self.licence,
        )

    @abstractmethod
    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question of a row and its reference answers, the training target first."""

    def read_turn(self, row: Row) -> tuple[str, Sequence[str]]:
        """The first question and answer of a row grouped by image, as in the_cauldron and FineVision."""
        texts = row["texts"]
        turn = {k: v[0] for k, v in texts.items()} if isinstance(texts, Mapping) else texts[0]
        return turn["user"], [turn["assistant"]]

    def images(self, row: Row) -> tuple[Image.Image, ...]:
        """The decoded pictures of a row.

        Raises:
            SkipRow: If there is none or one cannot be read.
        """
        values = row.get("images") or [row.get("image")]
        found = tuple(decode_image(value, self.image_root) for value in values if value is not None)
        if not found:
            raise SkipRow("no_image")
        return found


def decode_image(value: Any, root: Path = Path()) -> Image.Image:
    """Decodes a picture to RGB.

    Args:
        value: A PIL image, encoded bytes, a dictionary with `bytes` or `path`, or a path.
        root: Folder that paths are relative to.

    Raises:
        SkipRow: If the file is missing, cannot be decoded, or is a strip that no image processor accepts.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    try:
        if isinstance(value, bytes):
            value = io.BytesIO(value)
        elif not isinstance(value, Image.Image):
            value = root / value
        image = (value if isinstance(value, Image.Image) else Image.open(value)).convert("RGB")
    except FileNotFoundError as error:
        raise SkipRow("missing_image") from error
    except (OSError, SyntaxError, TypeError, ValueError, Image.DecompressionBombError) as error:
        raise SkipRow("unreadable_image") from error
    if max(image.size) > LARGEST_ASPECT * min(image.size):
        raise SkipRow("extreme_aspect")
    return image


def texts(value: Any) -> list[str]:
    """A list of strings from a string, a number, a list of either, or None."""
    if value is None:
        return []
    return (
        [str(item) for item in value if item is not None] if isinstance(value, list | tuple) else [str(value)]
    )
