"""The synthetic world as a stand-in for a data set on disk: rows by number, rendered on access."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from random import Random

from PIL import Image

from data_modules.sources import Picture, Row
from data_modules.synthetic import world
from data_modules.synthetic.schemas import to_row
from data_modules.synthetic.world import IMAGE_SIZE, SPLITS, generate

KIND_OF_SOURCE = {
    "llava": "scene",
    "textvqa": "sign",
    "scienceqa": "science",
    "docvqa": "document",
    "tallyqa": "count",
    "chartqa": "chart",
}


class WorldPicture(Picture):
    """A picture of the world, rendered when it is needed.

    Args:
        seed: Seed of the sample.
        kind: Kind of the sample.
    """

    def __init__(self, seed: int, kind: str) -> None:
        self.seed, self.kind = seed, kind
        self.name = self.identity = f"{kind}/{seed}/{world_version()}"
        self.size = (IMAGE_SIZE, IMAGE_SIZE)

    def decode(self) -> Image.Image:
        """Renders the picture."""
        return Image.fromarray(generate(self.seed, self.kind).image)


class WorldRows:
    """Rows of one kind, a pure function of split, seed and row number.

    Training rows start at a place of the split that the seed draws; the rows of the other splits are the same
    for every seed, so that results of different runs can be compared.

    Args:
        source: Name of a source.
        split: A key of `SPLITS`.
        seed: Seed of the data.
        available: Number of rows.
    """

    def __init__(self, source: str, split: str, seed: int, available: int) -> None:
        self.kind = KIND_OF_SOURCE[source]
        self.split = split
        self.start = Random(f"rows-{seed}").randrange(len(SPLITS[split])) if split == "train" else 0
        self.available = min(available, len(SPLITS[split]))

    def __len__(self) -> int:
        return self.available

    def __getitem__(self, number: int) -> Row:
        """One turn of one image, which is not rendered yet, in the schema of the source."""
        sample = generate(self._seed(number), self.kind, is_drawn=False)
        turn = Random(f"turn-{self.kind}-{sample.seed}").randrange(len(sample.turns))
        return to_row(sample, turn)[1] | {"image": WorldPicture(sample.seed, self.kind)}

    def key(self, number: int) -> str:
        """Name of a row, unique over all splits and kinds."""
        return f"{self.split}/{self.kind}/{self._seed(number)}"

    @property
    def fingerprint(self) -> str:
        """Changes whenever the rows do."""
        return f"world {world_version()} {self.split} {self.kind} {self.start} {self.available}"

    def _seed(self, number: int) -> int:
        split = SPLITS[self.split]
        return split[(self.start + number) % len(split)]


@cache
def world_version() -> str:
    """Hash of the code that renders the world."""
    digest = hashlib.sha256()
    for path in sorted(Path(world.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
