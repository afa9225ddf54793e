"""What is read from a row: a `Record` with pictures that are still encoded, or the reason to skip the row."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from tiger.backbones.images import upright_rgb, upright_size

LARGEST_ASPECT = 200  # image processors of the Qwen family refuse longer strips


class SkipRow(ValueError):
    """A row cannot be used.

    Attributes:
        reason: A short name, counted in the report of a mixture.
        detail: What it is about, such as the path of a missing file.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class Picture:
    """A picture that is decoded when it is needed; only its header is read before.

    Args:
        encoded: A path, encoded bytes, or a PIL image.
        name: Name of the file, if known.

    Attributes:
        size: Width and height, pixels.

    Raises:
        SkipRow: If the file is missing, is no image, or is a strip that no image processor accepts.
    """

    def __init__(self, encoded: Path | bytes | Image.Image, name: str = "") -> None:
        self.encoded, self.name = encoded, name
        with self._open() as image:
            self.size: tuple[int, int] = upright_size(image)
        if max(self.size) > LARGEST_ASPECT * min(self.size):
            raise SkipRow("extreme_aspect", name)

    @cached_property
    def identity(self) -> str:
        """Hash of the file's content: equal for equal pictures, whatever their names."""
        if isinstance(self.encoded, Image.Image):
            content = f"{self.size}".encode() + self.encoded.tobytes()
        else:
            content = self.encoded if isinstance(self.encoded, bytes) else self.encoded.read_bytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def decode(self) -> Image.Image:
        """The picture in RGB.

        Raises:
            SkipRow: If it cannot be decoded.
        """
        with self._open() as image:
            try:
                return upright_rgb(image)
            except (OSError, SyntaxError, ValueError) as error:
                raise SkipRow("unreadable_image", self.name) from error

    def _open(self) -> Image.Image:
        try:
            if isinstance(self.encoded, Image.Image):
                return self.encoded.copy()  # closing the copy leaves the row's own picture alone
            return Image.open(io.BytesIO(self.encoded) if isinstance(self.encoded, bytes) else self.encoded)
        except FileNotFoundError as error:
            raise SkipRow("missing_image", str(self.encoded)) from error
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise SkipRow("unreadable_image", self.name) from error


@dataclass(frozen=True)
class Record:
    """One question about one or more pictures.

    Attributes:
        images: The pictures, not decoded.
        question: The question as the source has it, without image placeholders.
        prompt: What is asked: the question, with choices or instructions where the source adds them.
        answers: Reference answers, the training target first; empty where the source has none.
        source: Name of the source.
        id: Name of the row, unique in a mixture.
        tag: One of `TAGS`.
        licence: Licence of the source.
    """

    images: tuple[Picture, ...]
    question: str
    prompt: str
    answers: tuple[str, ...]
    source: str
    id: str
    tag: str
    licence: str

    @property
    def picture(self) -> str:
        """Hash of all pictures."""
        identities = "\n".join(image.identity for image in self.images)
        return hashlib.sha256(identities.encode()).hexdigest()[:16]

    @property
    def content(self) -> str:
        """Hash of what the record shows, asks and answers."""
        text = "\x1f".join([self.picture, self.prompt, *self.answers])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def picture(value: Any, root: Path = Path()) -> Picture:
    """The picture that a value of a row stands for.

    Args:
        value: A picture, a PIL image, encoded bytes, a dictionary with `bytes` or `path`, or a path.
        root: Folder that paths are relative to.

    Raises:
        SkipRow: If there is no such picture.
    """
    name = str(value) if isinstance(value, str | Path) else ""
    if isinstance(value, Mapping):
        name = str(value.get("path") or "")
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str | Path):
        value = root / value
    if isinstance(value, Picture):
        return value
    if not isinstance(value, Path | bytes | Image.Image):
        raise SkipRow("unreadable_image", f"a value of type {type(value).__name__}")
    return Picture(value, name)
