"""Bar and line charts, as in ChartQA."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from data_modules.synthetic.canvas import Colour, blank, draw_shape, rectangle, segment, text
from data_modules.synthetic.types import COLOURS, MONTHS, NAMES, NUMBERS, Image, Mark, Turn, join, mark, turn

_HUES = ("red", "green", "blue", "orange", "purple", "pink")
_PAPERS: tuple[Colour, ...] = ((252, 252, 252), (246, 246, 236), (238, 242, 248))
_INK: Colour = (30, 30, 36)
_BASE, _UNIT, _LEFT = 108, 12, 14
Column = tuple[str, int]  # label, value


def build(rng: Random, is_drawn: bool = True) -> tuple[Image, list[Turn], list[Mark]]:
    """Draws a chart; returns its image, all its turns and its marks."""
    sort, hue = rng.choice(("bar", "line")), rng.choice(_HUES)
    count = rng.randint(3, 5)
    names = rng.choice((MONTHS, NAMES))
    labels = [names[i] for i in sorted(rng.sample(range(len(names)), count))]
    columns = [(label, rng.randint(1, 8)) for label in labels]
    image = blank(rng.choice(_PAPERS), is_drawn)
    pitch = (128 - _LEFT) // count
    points = [(_LEFT + pitch * i + pitch // 2, _BASE - _UNIT * value) for i, (_, value) in enumerate(columns)]
    _axes(image)
    _plot(image, sort, COLOURS[hue], points, pitch)
    marks: list[Mark] = []
    for (label, value), (x, y) in zip(columns, points, strict=True):
        text(image, label, x - 6, 118, _INK)
        marks += [mark("word", label, x, 118), mark("level", NUMBERS[value], x, 118)]
        marks += [mark("level", NUMBERS[value], x, y), mark("colour", hue, x, y)]
    return image, _list_turns(columns, sort, hue) + _value_turns(columns, rng), marks


def _axes(image: Image) -> None:
    """Draws light gridlines with their numbers and the base line."""
    for value in range(1, 9):
        y = _BASE - _UNIT * value
        rectangle(image, _LEFT, y, 128, y + 1, (205, 205, 210) if value % 2 else (170, 170, 178))
        text(image, str(value), 6, y + 1, _INK)
    rectangle(image, _LEFT, _BASE, 128, _BASE + 2, _INK)


def _plot(image: Image, sort: str, colour: Colour, points: list[tuple[int, int]], pitch: int) -> None:
    """Draws the bars, or the line with its markers."""
    if sort == "bar":
        half = min(pitch * 3 // 8, 11)
        for x, y in points:
            rectangle(image, x - half, y, x + half + 1, _BASE, colour)
        return
    for start, end in pairwise(points):
        segment(image, start, end, colour, 2)
    for x, y in points:
        draw_shape(image, "circle", 9, x, y, _INK)
        draw_shape(image, "circle", 7, x, y, colour)


def _list_turns(columns: list[Column], sort: str, hue: str) -> list[Turn]:
    """Questions about the whole chart."""
    listed = join([f"[{label} {NUMBERS[value]}]" for label, value in columns])
    names = join([f"[{label}]" for label, _ in columns])
    number = NUMBERS[len(columns)]
    each = join([f"[{NUMBERS[value]}] for [{label}]" for label, value in columns])
    described = f"[{hue} {sort}] chart shows [{number}] values from left to right, with {each}"
    return [
        turn("List all values from left to right.", f"From left to right the values are {listed}."),
        turn("Describe the chart and its values.", f"This {described}."),
        turn(
            "How many values does the chart show?",
            f"The chart shows [{number}] values, one each for {names}.",
        ),
        turn(
            "What sort of chart is this?",
            f"This is a [{sort}] chart drawn in [{hue}] with [{number}] labels.",
        ),
    ]


def _value_turns(columns: list[Column], rng: Random) -> list[Turn]:
    """Questions about some values."""
    (one, value), (two, other) = rng.sample(columns, 2)
    high, low = NUMBERS[max(value, other)], NUMBERS[min(value, other)]
    turns = [
        turn(f"What is the value for {one}?", f"The value for {one} in the chart is [{NUMBERS[value]}]."),
        turn(
            f"How high does the chart go at {two}?",
            f"At {two} the chart reaches a height of [{NUMBERS[other]}].",
        ),
    ]
    if value == other:
        tail = f"[both] have the [same] value of [{high}]"
        turns.append(turn(f"Which is higher, {one} or {two}?", f"Comparing {one} and {two}, {tail}."))
    else:
        more, less = (one, two) if value > other else (two, one)
        answer = f"[{more}] is higher with [{high}], while [{less}] has only [{low}]."
        turns.append(turn(f"Which is higher, {one} or {two}?", answer))
    return turns + _extremes(columns) + _above(columns, rng)


def _extremes(columns: list[Column]) -> list[Turn]:
    """The highest and the lowest label, where they are unique."""
    turns = []
    values = [value for _, value in columns]
    for word, best in (("highest", max(values)), ("lowest", min(values))):
        names = [label for label, value in columns if value == best]
        if len(names) == 1:
            answer = f"[{names[0]}] has the {word} value in the chart with [{NUMBERS[best]}]."
            turns.append(turn(f"Which label has the {word} value?", answer))
    return turns


def _above(columns: list[Column], rng: Random) -> list[Turn]:
    """The labels whose value is above a limit."""
    limit = rng.randint(2, 6)
    names = [f"[{label}]" for label, value in columns if value > limit]
    word = NUMBERS[limit]
    if not names:
        return []
    start = (
        f"The [only] label above {word} is" if len(names) == 1 else f"The labels with values above {word} are"
    )
    return [turn(f"Which labels have values above {word}?", f"{start} {join(names)}.")]
