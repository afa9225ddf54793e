"""Receipts and forms with fields and values, as in DocVQA."""

from __future__ import annotations

from random import Random

from data_modules.synthetic.canvas import BACKGROUNDS, Colour, blank, paste, rectangle, rounded_mask, text
from data_modules.synthetic.types import COLOURS, FIELDS, NUMBERS, Image, Mark, Turn, an, join, mark, turn

_PAPERS: tuple[Colour, ...] = ((252, 252, 250), (250, 244, 222), (236, 242, 250))
_INKS: tuple[Colour, ...] = ((16, 16, 20), (20, 30, 90), (80, 20, 20))
_HEADERS = ("red", "green", "blue", "yellow", "orange", "purple", "pink")
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"
_ORDINALS = ("first", "second", "third", "fourth")


def build(rng: Random, is_drawn: bool = True) -> tuple[Image, list[Turn], list[Mark]]:
    """Draws a document; returns its image, all its turns and its marks."""
    fields = rng.sample(FIELDS, rng.randint(3, 4))
    lines = [(field, value) for field, value in zip(fields, _values(rng, len(fields)), strict=True)]
    image, ink = blank(rng.choice(BACKGROUNDS), is_drawn), rng.choice(_INKS)
    paste(image, rounded_mask(122, 124, 3), 3, 2, rng.choice(_PAPERS))
    header = rng.choice((None, *_HEADERS)) if rng.random() < 0.7 else None
    marks: list[Mark] = []
    if header:
        rectangle(image, 3, 4, 125, 16, COLOURS[header])
        marks.append(mark("colour", header, 64, 10))
    pitch = 25 if len(lines) == 4 else rng.choice((26, 32))
    top = 32 + rng.randint(-4, 3)
    for index, (field, value) in enumerate(lines):
        y = top + pitch * index
        text(image, field, 11, y, ink)
        marks.append(mark("word", field, 11 + 3 * (len(field) - 1), y))
        centres = text(image, value, 66 + rng.randint(0, 6), y, ink, "regular", 2, 17)
        for char, centre in zip(value, centres, strict=True):
            marks += [mark("char", char, *centre), mark("word", field, *centre)]
        rectangle(image, 8, y + 12, 120, y + 13, (190, 190, 190))
    return image, _line_turns(lines, rng) + _page_turns(lines, header), marks


def _values(rng: Random, count: int) -> list[str]:
    """Draws different values of two or three characters, such as 42, 105 or B7."""
    values: list[str] = []
    while len(values) < count:
        head = rng.choice(_LETTERS) if rng.random() < 0.3 else str(rng.randint(1, 9))
        value = head + "".join(rng.choices("0123456789", k=rng.randint(1, 2)))
        if value not in values:
            values.append(value)
    return values


def _line_turns(lines: list[tuple[str, str]], rng: Random) -> list[Turn]:
    """Questions about one line."""
    (one, value), (two, other) = rng.sample(lines, 2)
    place = rng.randrange(len(lines))
    above = rng.randrange(len(lines) - 1)
    (upper, _), (lower, below) = lines[above], lines[above + 1]
    number = NUMBERS[place + 1]
    return [
        turn(f"What is the value of {one}?", f"The value of {one} on the document is [{value}]."),
        turn(f"Which value stands next to {two}?", f"Next to {two} you can read the value [{other}]."),
        turn(
            f"Which field has the value {lines[place][1]}?",
            f"The field [{lines[place][0]}] on line [{number}] has the value {lines[place][1]}.",
        ),
        turn(
            f"What is on the {_ORDINALS[place]} line?",
            f"The {_ORDINALS[place]} line says [{lines[place][0]}] with the value [{lines[place][1]}].",
        ),
        turn(
            "What is on the last line?",
            f"The last line says [{lines[-1][0]}] with the value [{lines[-1][1]}].",
        ),
        turn(
            f"What comes directly below {upper}?",
            f"Directly below {upper} comes [{lower}] with the value [{below}].",
        ),
    ]


def _page_turns(lines: list[tuple[str, str]], header: str | None) -> list[Turn]:
    """Questions about the whole page."""
    number = NUMBERS[len(lines)]
    listed = join([f"[{field} {value}]" for field, value in lines])
    said = join([f"line {NUMBERS[i]} says [{field} {value}]" for i, (field, value) in enumerate(lines, 1)])
    fields = join([f"[{field}]" for field, _ in lines])
    colour = f"{an(header)} bar" if header else "[no] bar"
    return [
        turn("Read all lines of the document in order.", f"The document lists {listed}."),
        turn("What is written on each line of the document?", f"From top to bottom, {said}."),
        turn(
            "How many lines does the document have?", f"The document has [{number}] lines, namely {fields}."
        ),
        turn(
            "What does the top of the document look like?",
            f"The document has {colour} at the top above [{lines[0][0]}].",
        ),
    ]
