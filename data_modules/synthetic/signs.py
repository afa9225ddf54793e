"""Signs with a short code, as in TextVQA."""

from __future__ import annotations

from random import Random

from data_modules.synthetic.canvas import BACKGROUNDS, Colour, blank, paste, rounded_mask, text
from data_modules.synthetic.types import (
    CELL,
    CHARS,
    COLOURS,
    IMAGE_SIZE,
    NUMBERS,
    Image,
    Mark,
    Turn,
    join,
    mark,
    turn,
)

BLACK: Colour = (16, 16, 20)
_DARK = ("red", "green", "blue", "purple")  # plates for white or yellow text, colours of text on light plates
_LIGHT = ("white", "yellow")
_FONTS = ("regular", "bold", "italic")
STEP = CELL // 2  # characters stand on half cells, so that a tiny vision tower can learn to read them


def build(rng: Random, is_drawn: bool = True) -> tuple[Image, list[Turn], list[Mark]]:
    """Draws a sign; returns its image, all its turns and its marks."""
    scale = rng.choice((2, 2, 3))
    advance = CELL if scale == 2 else CELL + STEP
    code = "".join(rng.sample(CHARS, rng.randint(3, 5 if scale == 2 else 4)))
    plate, ink = rng.choice(_DARK), rng.choice(_LIGHT)
    if rng.random() < 0.5:
        plate, ink = ink, plate
    width, height = advance * len(code) + 12, 13 * scale + 2 * rng.randint(2, 7)
    inset = 6 + advance // 2
    start = STEP * rng.randint(-(-(1 + inset) // STEP), (IMAGE_SIZE - 1 - width + inset) // STEP)
    middle = STEP * rng.randint(-(-(2 + height // 2) // STEP), (IMAGE_SIZE - 2 - height // 2) // STEP)
    left, top = start - inset, middle - height // 2
    image = blank(rng.choice(BACKGROUNDS), is_drawn)
    radius = rng.randint(3, 9)
    paste(image, rounded_mask(width, height, radius), left, top, BLACK)
    paste(image, rounded_mask(width - 4, height - 4, max(radius - 2, 1)), left + 2, top + 2, COLOURS[plate])
    centres = text(image, code, start, middle, COLOURS[ink], rng.choice(_FONTS), scale, advance)
    assert start + advance * (len(code) - 1) < IMAGE_SIZE, "text leaves the image"
    marks = [mark("char", char, x, y) for char, (x, y) in zip(code, centres, strict=True)]
    return image, _turns(code, plate, ink, rng), marks


def _turns(code: str, plate: str, ink: str, rng: Random) -> list[Turn]:
    """All the questions about a sign."""
    number, spelled = NUMBERS[len(code)], join([f"[{char}]" for char in code])
    index = rng.randrange(len(code) - 1)
    place = rng.randrange(1, len(code) - 1)
    ordinal = ("first", "second", "third", "fourth")[place]
    return [
        turn("What does the sign say?", f"The sign says [{code}] in [{ink}] on a [{plate}] plate."),
        turn(
            "Read the text on the plate.", f"The text on the plate reads [{code}] with [{number}] characters."
        ),
        turn("Spell the text on the sign.", f"One by one the characters are {spelled}."),
        turn("Which character comes first on the sign?", f"The first character on the sign is [{code[0]}]."),
        turn("Which character comes last on the sign?", f"The last character on the sign is [{code[-1]}]."),
        turn(
            "What is written at the start and the end?",
            f"The text starts with [{code[0]}] and ends with [{code[-1]}].",
        ),
        turn(
            "Describe the sign in detail from left to right.",
            f"It is a [{plate}] sign with [{number}] characters in [{ink}], which from left to right "
            f"are {spelled}, so the whole text on it reads [{code}].",
        ),
        turn(
            "How many characters are on the sign?",
            f"The sign has [{number}] characters, and they are {spelled}.",
        ),
        turn("What colour is the sign?", f"The sign is [{plate}] with the text [{code}] on it."),
        turn(
            "What colour are the characters on the sign?",
            f"The characters are [{ink}] and the sign itself is [{plate}].",
        ),
        turn(
            f"Which character follows {code[index]} on the sign?",
            f"The character right after {code[index]} is [{code[index + 1]}].",
        ),
        turn(
            f"What is the {ordinal} character on the plate?",
            f"The {ordinal} character on the plate is [{code[place]}].",
        ),
    ]
