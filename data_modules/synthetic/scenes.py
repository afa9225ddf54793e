"""Scenes of two to five shapes in a 3x3 layout, with descriptions as in LLaVA."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from data_modules.synthetic.canvas import BACKGROUNDS, blank, draw_shape
from data_modules.synthetic.types import (
    COLOURS,
    NUMBERS,
    PALETTE,
    SHAPES,
    SIZES,
    Image,
    Mark,
    Turn,
    an,
    join,
    mark,
    turn,
)

REGIONS = ("top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right")
_PIXELS = {"small": 16, "large": 30}
_JITTER = {"small": 8, "large": 4}
_NEIGHBOURS = (("right", 0, 1), ("left", 0, -1), ("below", 1, 0), ("above", -1, 0))


@dataclass(frozen=True)
class _Thing:
    """One object of a scene."""

    shape: str
    colour: str
    size: str
    place: int

    @property
    def region(self) -> str:
        return REGIONS[self.place]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


def build(rng: Random, is_drawn: bool = True) -> tuple[Image, list[Turn], list[Mark]]:
    """Draws a scene; returns its image, all its turns and its marks."""
    places = sorted(rng.sample(range(9), rng.randint(2, 5)))
    pairs = rng.sample([(shape, colour) for shape in SHAPES for colour in PALETTE], len(places))
    things = [_Thing(*pair, rng.choice(SIZES), place) for pair, place in zip(pairs, places, strict=True)]
    image = blank(rng.choice(BACKGROUNDS), is_drawn)
    free = rng.random() < 0.5
    marks: list[Mark] = []
    for thing in things:
        jitter = _JITTER[thing.size] * free
        x = 24 + 40 * (thing.place % 3) + rng.randint(-jitter, jitter)
        y = 24 + 40 * (thing.place // 3) + rng.randint(-jitter, jitter)
        draw_shape(image, thing.shape, _PIXELS[thing.size], x, y, COLOURS[thing.colour])
        marks += [mark(label, getattr(thing, label), x, y) for label in ("shape", "colour", "size")]
    return image, _overview(things) + _single(things, rng) + _relations(things), marks


def _overview(things: list[_Thing]) -> list[Turn]:
    """Questions about all objects, answered in reading order."""
    number = NUMBERS[len(things)]
    full = join([f"a [{thing.size} {thing.name}] at [{thing.region}]" for thing in things])
    short = join([an(thing.name) for thing in things])
    turns = [
        turn("Describe all the objects in the picture.", f"I see {full}."),
        turn("What do you see in this picture?", f"The picture shows [{number}] objects: {short}."),
        turn(
            "How many objects are in the picture?",
            f"There are [{number}] objects, the first is {an(things[0].name)}.",
        ),
    ]
    for size in SIZES:
        group = [thing for thing in things if thing.size == size]
        names = join([f"the [{thing.name}] at [{thing.region}]" for thing in group]) if group else ""
        if len(group) == 1:
            turns.append(
                turn(f"Which of the objects are {size}?", f"Only [one] object is {size}, namely {names}.")
            )
        elif group:
            turns.append(turn(f"Which of the objects are {size}?", f"The {size} objects are {names}."))
    return turns


def _single(things: list[_Thing], rng: Random) -> list[Turn]:
    """Questions about one object."""
    at, whole, where, part, big, hue = rng.choices(things, k=6)
    turns = [
        turn(
            f"What is at the {at.region} of the picture?",
            f"At the {at.region} there is a [{at.size} {at.name}].",
        ),
        turn(
            f"Which object do you find in the {whole.region} area?",
            f"The object in the {whole.region} area is a [{whole.size} {whole.name}].",
        ),
        turn(
            f"Where is the {where.name}?",
            f"The {where.name} is located at the [{where.region}] of the picture.",
        ),
        turn(
            f"In which part of the picture is the {part.name}?",
            f"You can find the {part.name} in the [{part.region}] part, and it is [{part.size}].",
        ),
        turn(f"How big is the {big.name}?", f"The {big.name} at the [{big.region}] is a [{big.size}] one."),
    ]
    if sum(thing.shape == hue.shape for thing in things) == 1:
        turns += [
            turn(
                f"What colour is the {hue.shape}?",
                f"The {hue.shape} at the [{hue.region}] has the colour [{hue.colour}].",
            ),
            turn(
                f"Tell me the colour and size of the {hue.shape}.",
                f"The {hue.shape} is [{hue.colour}] in colour and [{hue.size}] in size.",
            ),
        ]
    return turns


def _relations(things: list[_Thing]) -> list[Turn]:
    """Questions about the object in the region next to another one."""
    at = {divmod(thing.place, 3): thing for thing in things}
    turns = []
    for (row, column), thing in at.items():
        for side, down, right in _NEIGHBOURS:
            other = at.get((row + down, column + right))
            if other:
                word = f"{side} of" if right else side
                turns.append(
                    turn(
                        f"What is directly {word} the {thing.name}?",
                        f"Directly {word} the {thing.name} there is a [{other.size} {other.name}].",
                    )
                )
    return turns[:3]
