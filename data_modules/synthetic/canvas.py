"""Drawing primitives: cached boolean masks pasted on an RGB array.

Everything is integer arithmetic on numpy arrays and the bitmap font built into Pillow, so that an
image is the same on every platform.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import ImageFont

from data_modules.synthetic.types import IMAGE_SIZE, Image

Mask = npt.NDArray[np.bool_]
Colour = tuple[int, int, int]

FONTS = ("regular", "bold", "italic", "outline")
BACKGROUNDS: tuple[Colour, ...] = (
    (44, 48, 56),
    (34, 58, 62),
    (66, 54, 46),
    (48, 58, 44),
    (92, 92, 96),
    (58, 46, 66),
)
_STAR = ((50, 0), (62, 36), (100, 37), (70, 60), (81, 97), (50, 75), (19, 97), (30, 60), (0, 37), (38, 36))
_TRIANGLE = ((50, 2), (100, 95), (0, 95))


def blank(colour: Colour, is_drawn: bool = True) -> Image:
    """Returns an image filled with one colour, or one without pixels, on which nothing is drawn."""
    side = IMAGE_SIZE if is_drawn else 0
    return np.full((side, side, 3), colour, dtype=np.uint8)


def paste(image: Image, mask: Mask, x: int, y: int, colour: Colour) -> None:
    """Paints a mask whose top left corner is at (x, y), clipped at the borders."""
    if not image.size:
        return
    top, left = max(0, y), max(0, x)
    view = image[top : y + mask.shape[0], left : x + mask.shape[1]]
    if view.size:
        view[mask[top - y : top - y + view.shape[0], left - x : left - x + view.shape[1]]] = colour


def rectangle(image: Image, x0: int, y0: int, x1: int, y1: int, colour: Colour) -> None:
    """Fills the half-open rectangle [x0, x1) x [y0, y1)."""
    if not image.size:
        return
    image[max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)] = colour


def segment(
    image: Image, start: tuple[int, int], end: tuple[int, int], colour: Colour, width: int = 3
) -> None:
    """Draws a thick line between two points."""
    if not image.size:
        return
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        x = start[0] + (end[0] - start[0]) * step // steps - width // 2
        y = start[1] + (end[1] - start[1]) * step // steps - width // 2
        rectangle(image, x, y, x + width, y + width, colour)


def _polygon(points: tuple[tuple[int, int], ...], size: int) -> Mask:
    """Rasterises a polygon given in percent of a square, by the even-odd rule."""
    rows, columns = np.mgrid[0:size, 0:size] * 200 + 100
    inside = np.zeros((size, size), dtype=np.bool_)
    scaled = [(2 * x * size, 2 * y * size) for x, y in points]
    for (x0, y0), (x1, y1) in zip(scaled, scaled[1:] + scaled[:1], strict=True):
        if y0 == y1:
            continue
        crosses = (rows < y0) != (rows < y1)
        side = (columns - x0) * (y1 - y0) < (x1 - x0) * (rows - y0)
        inside ^= crosses & (side if y1 > y0 else ~side)
    return inside


@lru_cache(maxsize=256)
def shape_mask(shape: str, size: int) -> Mask:
    """Returns the square mask of a shape.

    Args:
        shape: One of `SHAPES`.
        size: Side of the mask in pixels.

    Returns:
        A boolean array [size, size].
    """
    rows, columns = np.mgrid[0:size, 0:size] * 2 + 1 - size
    third = size // 6 * 2 + 1
    match shape:
        case "circle":
            return np.asarray(rows**2 + columns**2 <= size * size)
        case "square":
            return np.asarray(np.maximum(abs(rows), abs(columns)) <= size * 88 // 100)
        case "diamond":
            return np.asarray(abs(rows) + abs(columns) <= size)
        case "cross":
            return np.asarray(np.minimum(abs(rows), abs(columns)) < third)
        case "star":
            return _polygon(_STAR, size)
        case "triangle":
            return _polygon(_TRIANGLE, size)
    raise ValueError(f"unknown shape: {shape}")


def draw_shape(image: Image, shape: str, size: int, x: int, y: int, colour: Colour) -> None:
    """Draws a shape centred at (x, y)."""
    if not image.size:
        return
    paste(image, shape_mask(shape, size), x - size // 2, y - size // 2, colour)


@lru_cache(maxsize=256)
def rounded_mask(width: int, height: int, radius: int) -> Mask:
    """Returns the mask of a rectangle with round corners."""
    rows, columns = np.mgrid[0:height, 0:width]
    dy = np.maximum(np.maximum(radius - rows, rows - (height - 1 - radius)), 0)
    dx = np.maximum(np.maximum(radius - columns, columns - (width - 1 - radius)), 0)
    return np.asarray(dx * dx + dy * dy <= radius * radius)


def _dilate(mask: Mask) -> Mask:
    """Widens the strokes of a padded mask by one pixel to the right."""
    return mask | np.roll(mask, 1, 1)


@lru_cache(maxsize=2048)
def glyph(char: str, font: str = "regular", scale: int = 1) -> Mask:
    """Returns the mask of one character of the built-in bitmap font.

    Args:
        char: The character.
        font: One of `FONTS`.
        scale: Integer magnification; a plain glyph is 8 x 11 pixels, its advance 6.

    Returns:
        A boolean array with the glyph in its middle.
    """
    plain = ImageFont.load_default_imagefont().getmask(f" {char} ")  # serifs reach over the advance of 6
    width, height = plain.size
    mask = np.array(list(plain), dtype=np.uint8).reshape(height, width)[:, 5:13] > 0
    mask = np.pad(mask.repeat(scale, 0).repeat(scale, 1), scale)
    if font == "bold":
        return _dilate(mask)
    if font == "outline":
        around = [np.roll(mask, shift, axis) for shift in (1, -1) for axis in (0, 1)]
        return mask & ~np.logical_and.reduce(around) if scale > 2 else np.logical_or.reduce(around) & ~mask
    if font == "italic":
        middle = mask.shape[0] // 2
        slant = max(4 - scale // 2, 3)
        wide = np.pad(mask, ((0, 0), (6, 6)))
        return np.stack([np.roll(row, (middle - y) // slant) for y, row in enumerate(wide)])
    return mask


def text(
    image: Image,
    words: str,
    x: int,
    y: int,
    colour: Colour,
    font: str = "regular",
    scale: int = 1,
    advance: int = 6,
) -> list[tuple[float, float]]:
    """Draws a line of text.

    Args:
        image: The image to draw on.
        words: The text.
        x: Centre of the first character.
        y: Vertical centre of the line.
        colour: Colour of the text.
        font: One of `FONTS`.
        scale: Magnification of the glyphs.
        advance: Distance between the centres of two characters.

    Returns:
        The centre of every character.
    """
    centres = []
    for index, char in enumerate(words):
        centre = x + index * advance
        if image.size:
            mask = glyph(char, font, scale)
            paste(image, mask, centre - mask.shape[1] // 2, y - mask.shape[0] // 2, colour)
        centres.append((float(centre), float(y)))
    return centres
