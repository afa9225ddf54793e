"""Images of evaluation sets, which a training mixture leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_modules.hub import open_rows
from data_modules.sources import Record, Row, SkipRow, picture

IMAGES = ("image", "images", "image_list")  # columns that hold pictures
NAMES = ("file_name", "image_source")  # columns that hold file names
_COCO = re.compile(r"(?<!\d)\d{12}(?!\d)")  # COCO numbers are the same in 2014 and 2017


@dataclass(frozen=True)
class ReservedSet:
    """An evaluation set whose images are left out.

    Attributes:
        path: A local copy of the data set, or a list: COCO annotations (.json), or a text file (.txt) with a
            COCO number or the hash of a picture on each line.
        repos: Hub ids in place of a path.
        split: Split of a data set.
        config: Configuration of a data set.
    """

    path: str | None = None
    repos: tuple[str, ...] = ()
    split: str = "test"
    config: str | None = None


class ReservedImages:
    """Tells which records show a reserved image: by its content, or by its COCO number.

    Args:
        sets: The evaluation sets.

    Raises:
        FileNotFoundError: If a set is not found.
        ValueError: If a set names no image.
    """

    def __init__(self, sets: Sequence[ReservedSet]) -> None:
        self.pictures: set[str] = set()
        self.coco: set[int] = set()
        for reserved in sets:
            before = len(self.pictures) + len(self.coco)
            self._read(reserved)
            if len(self.pictures) + len(self.coco) == before:
                raise ValueError(
                    f"{reserved} adds no image to those that are left out; name a data set with a column out "
                    f"of {', '.join(IMAGES + NAMES)}, COCO annotations, or a text file of numbers or hashes."
                )

    def reason(self, record: Record) -> str | None:
        """The reason to drop a record that shows a reserved image."""
        for image in record.images:
            if self.coco.intersection(_coco_numbers(image.name)):
                return "evaluation_image"
            if self.pictures and image.identity in self.pictures:
                return "evaluation_image"
        return None

    def _read(self, reserved: ReservedSet) -> None:
        path = Path(reserved.path) if reserved.path else None
        if path and path.suffix == ".txt":
            for word in path.read_text().split():
                self._add(word)
        elif path and path.suffix == ".json":
            self.coco.update(image["id"] for image in json.loads(path.read_text())["images"])
        else:
            for row in open_rows(reserved.repos, path, reserved.split, reserved.config):
                self._add_row(row)

    def _add(self, word: str) -> None:
        if word.isdecimal() and len(word) <= 12:
            self.coco.add(int(word))
        else:
            self.pictures.add(word)

    def _add_row(self, row: Row) -> None:
        for name in NAMES:
            self.coco.update(_coco_numbers(str(row.get(name) or "")))
        for value in _values(row):
            try:
                image = picture(value)
            except SkipRow:
                continue  # a damaged picture is in no mixture either
            self.pictures.add(image.identity)
            self.coco.update(_coco_numbers(image.name))


def _values(row: Row) -> list[Any]:
    """The pictures of a row, encoded."""
    found: list[Any] = []
    for column in IMAGES:
        value = row.get(column)
        found += value if isinstance(value, list) else [value]
    return [value for value in found if isinstance(value, Mapping)]


def _coco_numbers(name: str) -> set[int]:
    return {int(number) for number in _COCO.findall(name)}
