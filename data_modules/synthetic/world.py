"""The synthetic world: rendered images with exact questions and answers.

`generate` is a pure function of a seed. Disjoint seed ranges in `SPLITS` keep training, validation
and test images apart.
"""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt

from data_modules.synthetic import charts, counting, documents, scenes, science, signs
from data_modules.synthetic.types import CELL, IMAGE_SIZE, LABELS, Mark, Sample, Turn

__all__ = [
    "CELL",
    "IMAGE_SIZE",
    "KINDS",
    "LABELS",
    "SPLITS",
    "Mark",
    "Sample",
    "Turn",
    "cell_labels",
    "generate",
]

KINDS = ("scene", "count", "sign", "document", "chart", "science")
SPLITS: dict[str, range] = {
    "train": range(0, 100_000_000),
    "validation": range(100_000_000, 101_000_000),
    "test": range(101_000_000, 102_000_000),
}
_BUILD = {
    "scene": scenes.build,
    "count": counting.build,
    "sign": signs.build,
    "document": documents.build,
    "chart": charts.build,
    "science": science.build,
}


def generate(seed: int, kind: str | None = None, is_drawn: bool = True) -> Sample:
    """Renders one sample.

    Args:
        seed: Seed of the sample.
        kind: One of `KINDS`; by default the seed draws it.
        is_drawn: Whether there is an image; without it, all the rest is the same and comes faster.

    Returns:
        An image with four to eight different turns and its marks.
    """
    kind = kind or Random(f"kind-{seed}").choice(KINDS)
    rng = Random(f"{kind}-{seed}")
    image, turns, marks = _BUILD[kind](rng, is_drawn)
    return Sample(seed, kind, image, _choose(turns, rng), tuple(marks))


def _choose(turns: list[Turn], rng: Random) -> tuple[Turn, ...]:
    """Draws four to eight turns, two of them out of the three with the longest answers."""
    unique = {turn.question: turn for turn in turns}
    longest = sorted(unique, key=lambda question: len(unique[question].answer))[-3:]
    picked = rng.sample(longest, 2)
    rest = [question for question in unique if question not in picked]
    picked += rng.sample(rest, min(len(rest), rng.randint(2, 6)))
    rng.shuffle(picked)
    return tuple(unique[question] for question in picked)


def cell_labels(sample: Sample) -> dict[str, npt.NDArray[np.int16]]:
    """Returns the class of every 16x16 cell for each label, -1 for cells without a mark.

    Args:
        sample: A generated sample.

    Returns:
        One array [8, 8] for each key of `LABELS`.
    """
    side = IMAGE_SIZE // CELL
    cells = {label: np.full((side, side), -1, dtype=np.int16) for label in LABELS}
    for item in sample.marks:
        cells[item.label][int(item.y) // CELL, int(item.x) // CELL] = item.value
    return cells
