"""Multiple-choice questions about levels and heights, as in ScienceQA."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from random import Random

from data_modules.synthetic.canvas import Colour, blank, draw_shape, rectangle, text
from data_modules.synthetic.types import COLOURS, NUMBERS, Image, Mark, Turn, join, mark, turn

_HUES = ("red", "green", "blue", "yellow", "orange", "purple", "pink")
_PAPERS: tuple[Colour, ...] = ((226, 232, 238), (236, 230, 220), (226, 236, 226))
_INK: Colour = (24, 24, 30)
_BASE, _UNIT = 96, 13


@dataclass(frozen=True)
class _Sort:
    """The words for one sort of items."""

    noun: str
    most: str
    least: str
    level: str
    colour: str


_SORTS = (
    _Sort("beaker", "holds the most liquid", "holds the least liquid", "is filled up to level", "liquid in"),
    _Sort(
        "thermometer",
        "shows the highest temperature",
        "shows the lowest temperature",
        "reads a level of",
        "fluid in",
    ),
    _Sort("tower", "is the tallest of all", "is the shortest of all", "has a height of", "body of"),
)
Item = tuple[str, int, str]  # letter, level, colour


def build(rng: Random, is_drawn: bool = True) -> tuple[Image, list[Turn], list[Mark]]:
    """Draws two to four items; returns the image, all its turns and its marks."""
    sort, count = rng.choice(_SORTS), rng.randint(2, 4)
    levels, hues = rng.sample(range(1, 7), count), rng.sample(_HUES, count)
    items = list(zip("ABCD", levels, hues, strict=False))
    image = blank(rng.choice(_PAPERS), is_drawn)
    rectangle(image, 4, _BASE, 124, _BASE + 2, _INK)
    pitch = 120 // count
    marks: list[Mark] = []
    for index, (letter, level, hue) in enumerate(items):
        x = 4 + pitch * index + pitch // 2
        top = _BASE - _UNIT * level
        _draw(image, sort.noun, x, level, COLOURS[hue])
        text(image, letter, x, 111, _INK, "regular", 2)
        marks += [
            mark("char", letter, x, 111),
            mark("level", NUMBERS[level], x, 111),
            mark("colour", hue, x, 111),
        ]
        marks += [mark("level", NUMBERS[level], x, top), mark("colour", hue, x, top)]
    return image, _rank_turns(items, sort) + _item_turns(items, sort, rng), marks


def _draw(image: Image, noun: str, x: int, level: int, colour: Colour) -> None:
    """Draws one item standing on the base line."""
    top, full = _BASE - _UNIT * level, _BASE - _UNIT * 6 - 6
    half = {"beaker": 10, "thermometer": 5, "tower": 8}[noun]
    if noun != "tower":
        rectangle(image, x - half - 2, full, x + half + 3, _BASE, _INK)
        rectangle(image, x - half, full, x + half + 1, _BASE - 2, (250, 250, 252))
    rectangle(image, x - half, top, x + half + 1, _BASE, colour)
    if noun == "thermometer":
        draw_shape(image, "circle", 17, x, _BASE - 3, _INK)
        draw_shape(image, "circle", 13, x, _BASE - 3, colour)
    for step in range(1, level + 1 if noun == "tower" else 7):
        y = _BASE - _UNIT * step
        right = x + half + 1 if noun == "tower" else x - half + 5
        rectangle(image, x - half, y, right, y + 1, _INK)


def _rank_turns(items: list[Item], sort: _Sort) -> list[Turn]:
    """Which item is first, last, and the order of all items."""
    letters = [letter for letter, _, _ in items]
    ranked = [letter for letter, _, _ in sorted(items, key=lambda item: item[1])]
    choose = f"Choose {join(letters)}.".replace(" and ", " or ")
    turns = []
    for claim, letter in ((sort.most, ranked[-1]), (sort.least, ranked[0])):
        answer = f"{sort.noun} [{letter}] {claim}, so the answer is [{letter}]."
        turns.append(turn(f"Which {sort.noun} {claim}? {choose}", answer, letters, letter))
    orders = [join(order) for order in permutations(letters)][:5]
    right = join(ranked)
    if right not in orders:
        orders[-1] = right
    levels = {letter: level for letter, level, _ in items}
    listed = join([f"[{letter}] with [{NUMBERS[levels[letter]]}]" for letter in ranked])
    answer = f"The order from lowest to highest is {listed}."
    turns.append(turn(f"Order the {sort.noun}s from lowest to highest.", answer, orders, right))
    return turns


def _item_turns(items: list[Item], sort: _Sort, rng: Random) -> list[Turn]:
    """The level and the colour of an item, and a comparison of two."""
    (one, level, _), (two, other, hue) = rng.sample(items, 2)
    levels = sorted({level, *rng.sample(range(1, 7), 3)})
    hues = sorted({hue, *rng.sample(_HUES, 3)})
    high, low = (one, two) if level > other else (two, one)
    return [
        *_group_turns(items, sort, rng),
        turn(
            f"Which level does {sort.noun} {one} have?",
            f"{sort.noun} {one} {sort.level} [{NUMBERS[level]}] in the picture.",
            [NUMBERS[number] for number in levels],
            NUMBERS[level],
        ),
        turn(
            f"What colour is the {sort.colour} {sort.noun} {two}?",
            f"The {sort.colour} {sort.noun} {two} shows the colour [{hue}].",
            hues,
            hue,
        ),
        turn(
            f"Which one is higher, {sort.noun} {one} or {sort.noun} {two}?",
            f"Between {one} and {two}, [{high}] is higher than [{low}], so the answer is [{high}].",
            sorted((one, two)),
            high,
        ),
    ]


def _group_turns(items: list[Item], sort: _Sort, rng: Random) -> list[Turn]:
    """The number of items and all their colours."""
    hues = tuple(hue for _, _, hue in items)
    other = rng.choice([order for order in permutations(hues) if order != hues])
    listed = join([f"[{letter}] is [{hue}]" for letter, _, hue in items])
    letters = join([f"[{letter}]" for letter, _, _ in items])
    number = NUMBERS[len(items)]
    each = join(
        [f"{sort.noun} [{letter}] is [{hue}] up to level [{NUMBERS[level]}]" for letter, level, hue in items]
    )
    return [
        turn(
            f"Describe every {sort.noun} in the picture.",
            f"From left to right, {each}.",
            sorted((join(hues), join(other))),
            join(hues),
        ),
        turn(
            f"What are the colours of the {sort.noun}s?",
            f"From left to right, {listed}.",
            sorted((join(hues), join(other))),
            join(hues),
        ),
        turn(
            f"How many {sort.noun}s are in the picture?",
            f"There are [{number}] {sort.noun}s, labelled {letters}.",
            NUMBERS[2:5],
            number,
        ),
    ]
