"""Evaluation prompts, the same on every machine."""

from __future__ import annotations

from data_modules.evaluation import SETS, load_set
from tiger.backbones.base import Prompt

DATASETS = tuple(SETS)


def load_prompts(dataset: str, num_prompts: int) -> list[Prompt]:
    """The first prompts of an evaluation set.

    Args:
        dataset: Name of a set, such as "synthetic" (held-out test images, all kinds in turn) or
            "synthetic_long" (the same images, each with the question that has the longest answer).
        num_prompts: How many.

    Raises:
        ValueError: If the data set is unknown, or has fewer prompts, or none were asked for.
    """
    tasks = load_set(dataset, num_prompts)
    return [tasks.prompt(index) for index in range(len(tasks))]
