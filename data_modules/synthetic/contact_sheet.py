"""Contact sheet of the synthetic world: python -m data_modules.synthetic.contact_sheet OUT.png."""

from __future__ import annotations

import sys
import textwrap

from PIL import Image, ImageDraw, ImageFont

from data_modules.synthetic.world import IMAGE_SIZE, KINDS, SPLITS, generate

_ZOOM, _CAPTION, _COLUMNS = 2, 84, 4


def contact_sheet(start: int = SPLITS["test"].start) -> Image.Image:
    """Draws four samples of each kind with one turn below each.

    Args:
        start: First seed.

    Returns:
        The sheet, one row of samples for each kind.
    """
    side = IMAGE_SIZE * _ZOOM
    sheet = Image.new("RGB", (_COLUMNS * (side + 8), len(KINDS) * (side + _CAPTION)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default_imagefont()
    for row, kind in enumerate(KINDS):
        for column in range(_COLUMNS):
            sample = generate(start + column, kind)
            left, top = column * (side + 8) + 4, row * (side + _CAPTION)
            sheet.paste(
                Image.fromarray(sample.image).resize((side, side), Image.Resampling.NEAREST), (left, top + 2)
            )
            turn = max(sample.turns, key=lambda item: len(item.answer)) if column % 2 else sample.turns[0]
            lines = textwrap.wrap(turn.question, 42) + textwrap.wrap(turn.answer, 42)
            draw.multiline_text((left, top + side + 4), "\n".join(lines[:7]), "black", font, spacing=0)
    return sheet


def main() -> None:
    """Writes the sheet to the path given on the command line."""
    contact_sheet().save(sys.argv[1], optimize=True)


if __name__ == "__main__":
    main()
