"""Evaluation prompts, the same on every machine."""

from __future__ import annotations

from random import Random

from PIL import Image

from data_modules.synthetic.world import KINDS, SPLITS, generate
from tiger.backbones.base import Prompt

DATASETS = {"synthetic": "test", "synthetic_long": "test", "synthetic_validation": "validation"}


def load_prompts(dataset: str, num_prompts: int) -> list[Prompt]:
    """The first prompts of a data split, one question per image, all kinds in turn.

    Args:
        dataset: "synthetic" (held-out test images), "synthetic_long" (the same images, each with the question
            that has the longest answer: the style of speed measurements) or "synthetic_validation".
        num_prompts: How many.

    Raises:
        ValueError: If the data set is unknown, or has fewer prompts, or none were asked for.
    """
    if dataset not in DATASETS:
        raise ValueError(f"Unknown data set {dataset!r}; choose one of {', '.join(DATASETS)}.")
    seeds = SPLITS[DATASETS[dataset]]
    if not 0 < num_prompts <= len(seeds):
        raise ValueError(f"num_prompts is {num_prompts}; {dataset} has 1 to {len(seeds)}.")
    return [_prompt(dataset, seeds[index], KINDS[index % len(KINDS)]) for index in range(num_prompts)]


def _prompt(dataset: str, seed: int, kind: str) -> Prompt:
    sample = generate(seed, kind)
    if dataset == "synthetic_long":
        turn = max(range(len(sample.turns)), key=lambda index: len(sample.turns[index].answer))
    else:
        turn = Random(f"turn-{seed}").randrange(len(sample.turns))
    image = Image.fromarray(sample.image)
    return Prompt(sample.turns[turn].question, (image,), id=f"{dataset}/{kind}/{seed}/{turn}")
