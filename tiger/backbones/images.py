"""Reads image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
ORIENTATION = 0x0112


def load_image(path: str | Path) -> Image.Image:
    """Reads an image file completely, upright and in RGB.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no image or ends too early.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no image file {str(path)!r}.")
    try:
        with Image.open(path) as image:
            return upright_rgb(image)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as an image ({error}); give a PNG, JPEG or WebP file."
        ) from error


def upright_rgb(image: Image.Image) -> Image.Image:
    """An image in RGB as it is meant to be seen: turned by its EXIF orientation, 16-bit greys scaled to 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.float64)
        scale = 257 if values.max(initial=0) > 255 else 1
        image = Image.fromarray((values / scale).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of `upright_rgb`, pixels, read from the header."""
    width, height = image.size
    # Without this entry, asking a PNG for EXIF data would decode it.
    is_turned = "exif" in image.info and image.getexif().get(ORIENTATION) in TURNED
    return (height, width) if is_turned else (width, height)
