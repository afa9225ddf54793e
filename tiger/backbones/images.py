"""Reads image files."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, UnidentifiedImageError


def load_image(path: str | Path) -> Image.Image:
    """Reads an image file completely, in RGB.

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
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as an image ({error}); give a PNG, JPEG or WebP file."
        ) from error
