"""Data types and vocabularies of the synthetic world."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

IMAGE_SIZE = 128
CELL = 16

SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")
SIZES = ("small", "large")
CHARS = tuple("ABCDEFGHJKLMNPRSTUVWXYZ0123456789")  # I, O and Q look like 1 and 0
FIELDS = (
    "Total", "Date", "Table", "Price", "Tax", "Tip", "Room",
    "Seat", "Code", "Order", "Gate", "Desk", "Floor", "Weight",
)  # fmt: skip
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
NAMES = ("Ann", "Ben", "Eva", "Joe", "Kim", "Leo", "Max", "Sam", "Tom", "Zoe")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 40, 40),
    "green": (40, 175, 65),
    "blue": (45, 90, 235),
    "yellow": (250, 225, 40),
    "orange": (255, 140, 20),
    "purple": (140, 50, 190),
    "pink": (255, 150, 200),
    "white": (250, 250, 250),
}
PALETTE = tuple(COLOURS)

LABELS: dict[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": PALETTE,
    "size": SIZES,
    "char": CHARS,
    "word": FIELDS + MONTHS + NAMES,
    "level": NUMBERS[1:9],
}


@dataclass(frozen=True)
class Turn:
    """One question about an image with its exact answer.

    Attributes:
        question: The question.
        answer: A full sentence fixed by the question and the image.
        critical: The words of the answer that only the image can tell.
        choices: The options of a multiple-choice question.
        answer_index: Index of the right option, -1 without options.
        number: The integer a counting question asks for, -1 elsewhere.
    """

    question: str
    answer: str
    critical: tuple[str, ...]
    choices: tuple[str, ...] = ()
    answer_index: int = -1
    number: int = -1


@dataclass(frozen=True)
class Mark:
    """One labelled thing in an image, for dense supervision.

    Attributes:
        label: A key of `LABELS`.
        value: Index into `LABELS[label]`.
        x: Horizontal pixel centre.
        y: Vertical pixel centre.
    """

    label: str
    value: int
    x: float
    y: float


@dataclass(frozen=True)
class Sample:
    """One rendered image with its turns and marks."""

    seed: int
    kind: str
    image: Image
    turns: tuple[Turn, ...]
    marks: tuple[Mark, ...]


def mark(label: str, name: str, x: float, y: float) -> Mark:
    """Builds a mark from the name of its class."""
    return Mark(label, LABELS[label].index(name), float(x), float(y))


def turn(question: str, answer: str, choices: Sequence[str] = (), right: str = "", number: int = -1) -> Turn:
    """Builds a turn from an answer whose vision-critical parts stand in brackets.

    Args:
        question: The question.
        answer: The answer, such as "The sign has [four] characters."
        choices: The options of a multiple-choice question.
        right: The right option.
        number: The integer a counting question asks for.

    Returns:
        The turn with the brackets removed from the answer.
    """
    parts = re.findall(r"\[([^]]*)\]", answer)
    critical = tuple(dict.fromkeys(word.strip(",.:") for part in parts for word in part.split()))
    plain = answer.replace("[", "").replace("]", "")
    index = list(choices).index(right) if choices else -1
    return Turn(question, plain[0].upper() + plain[1:], critical, tuple(choices), index, number)


def an(name: str) -> str:
    """Puts the indefinite article before a name, which is one critical part of an answer."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} [{name}]"


def join(items: Sequence[str]) -> str:
    """Joins items as in "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
