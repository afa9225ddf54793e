"""Pictures with up to eight small shapes to count, as in TallyQA."""

from __future__ import annotations

from collections import Counter
from random import Random

from data_modules.synthetic.canvas import BACKGROUNDS, blank, draw_shape
from data_modules.synthetic.types import (
    COLOURS,
    NUMBERS,
    PALETTE,
    SHAPES,
    Image,
    Mark,
    Turn,
    mark,
    turn,
)

Thing = tuple[str, str]  # colour, shape


def build(rng: Random, is_drawn: bool = True) -> tuple[Image, list[Turn], list[Mark]]:
    """Draws things to count; returns the image, all its turns and its marks."""
    things = _things(rng)
    image = blank(rng.choice(BACKGROUNDS), is_drawn)
    marks: list[Mark] = []
    for place, (colour, shape) in zip(rng.sample(range(16), len(things)), things, strict=True):
        x = 16 + 32 * (place % 4) + rng.randint(-4, 4)
        y = 16 + 32 * (place // 4) + rng.randint(-4, 4)
        draw_shape(image, shape, rng.randrange(16, 23, 2), x, y, COLOURS[colour])
        marks += [mark("shape", shape, x, y), mark("colour", colour, x, y)]
    return image, _counts(things, rng), marks


def _things(rng: Random) -> list[Thing]:
    """Draws one to six targets and distractors out of two colours and two shapes more."""
    colours, shapes = rng.sample(PALETTE, 3), rng.sample(SHAPES, 3)
    others = [(colour, shape) for colour in colours for shape in shapes][1:]
    targets = rng.randint(1, 6)
    distractors = rng.choices(others, k=rng.randint(2, min(4, 8 - targets)))
    return [(colours[0], shapes[0])] * targets + distractors


def _many(noun: str) -> str:
    """Returns the plural of a noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _plural(number: int, noun: str) -> str:
    """Writes a number, the critical part, with its noun, such as "[two] crosses"."""
    return f"[{NUMBERS[number]}] {noun if number == 1 else _many(noun)}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _counts(things: list[Thing], rng: Random) -> list[Turn]:
    """Questions for one number."""
    total, exact = len(things), Counter(things)
    pairs = rng.sample(sorted(exact), min(3, len(exact)))
    turns = [_total(things)]
    for index, (colour, shape) in enumerate(dict.fromkeys([things[0], *pairs])):
        number, noun = exact[colour, shape], f"{colour} {shape}"
        many = _many(noun)
        answer = f"There {_are(number)} {_plural(number, noun)} in the picture."
        if index % 2:
            turns.append(
                turn(
                    f"Count the {many} in this image.",
                    f"I count {_plural(number, noun)} among [{NUMBERS[total]}] objects in all.",
                    number=number,
                )
            )
        else:
            turns.append(turn(f"How many {many} are there?", answer, number=number))
    return turns + _by_shape(things, rng) + _by_colour(things, rng)


def _total(things: list[Thing]) -> Turn:
    """The number of all objects."""
    total = len(things)
    answer = f"Altogether there are [{NUMBERS[total]}] objects in the picture."
    return turn("How many objects are there altogether?", answer, number=total)


def _by_shape(things: list[Thing], rng: Random) -> list[Turn]:
    """The number of things of a shape."""
    counts = Counter(shape for _, shape in things)
    return [
        turn(
            f"How many {_many(shape)} can you see here?",
            f"You can see {_plural(counts[shape], shape)} in this picture.",
            number=counts[shape],
        )
        for shape in rng.sample(sorted(counts), min(2, len(counts)))
    ]


def _by_colour(things: list[Thing], rng: Random) -> list[Turn]:
    """The number of things of a colour."""
    colour = rng.choice(sorted({colour for colour, _ in things}))
    number = sum(other == colour for other, _ in things)
    answer = f"The picture has {_plural(number, f'{colour} object')} in total."
    return [turn(f"How many {colour} objects are in the picture?", answer, number=number)]
