"""Held-out pictures of the synthetic world as an evaluation set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from data_modules.evaluation.base import AS_PUBLISHED, SetOptions, check_subset
from data_modules.synthetic.world import KINDS, SPLITS, generate
from data_modules.world_rows import world_version
from tiger.backbones.base import Prompt
from tiger.backbones.videos import Video
from tiger.metrics.exact_match import ExactMatch
from tiger.metrics.task import Reference, TaskMetric


class Synthetic:
    """Test pictures of the synthetic world, all kinds in turn, one question per picture.

    The first pictures of the split are taken, the same for every seed. An answer counts if it is the whole
    sentence.

    Args:
        style: "score" for any question of a picture, "speed" for the one that has the longest answer; None
            for the usual one of the set.
        limit: How many.
        seed: Without effect.
        options: None applies; the world is rendered.

    Attributes:
        references: What each sample is judged by.
        skipped: Ids of samples that cannot be used, by reason: none.

    Raises:
        ValueError: If the style is unknown or the limit is not that of a subset of the split.
    """

    name: ClassVar[str] = "synthetic"
    split: ClassVar[str] = "test"
    usual_style: ClassVar[str] = "score"
    answer_limit: ClassVar[int] = 96
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def __init__(
        self,
        style: str | None = None,
        limit: int | None = None,
        seed: int = 0,
        options: SetOptions = AS_PUBLISHED,
    ) -> None:
        self.style, self.seeds = style or self.usual_style, SPLITS[self.split]
        check_subset(self.name, self.style, limit)
        if limit is None or limit > len(self.seeds):
            raise ValueError(f"num_prompts is {limit}; {self.name} has 1 to {len(self.seeds)}.")
        self.skipped: dict[str, list[str]] = {}
        self.references = [self._reference(index) for index in range(limit)]

    def __len__(self) -> int:
        return len(self.references)

    @property
    def label(self) -> str:
        """Name and, unless it is the usual one, style."""
        return self.name if self.style == self.usual_style else f"{self.name}@{self.style}"

    @property
    def prompt_ids(self) -> list[str]:
        """Ids of all prompts, without rendering them."""
        return [f"{self.label}/{reference.id}" for reference in self.references]

    def settings(self) -> dict[str, Any]:
        """What prompts and references depend on beside their ids."""
        return {"world": world_version()}

    def prompt(self, index: int) -> Prompt:
        """Renders the picture of one sample."""
        reference = self.references[index]
        kind, seed, _ = reference.id.split("/")
        image = Image.fromarray(generate(int(seed), kind).image)
        return replace(
            self.show(image, int(seed)), text=reference.question, id=f"{self.label}/{reference.id}"
        )

    def show(self, image: Image.Image, seed: int) -> Prompt:
        """The picture of a sample, drawn by a seed, in a prompt that has no text yet."""
        return Prompt("", (image,))

    def metrics(self) -> tuple[TaskMetric, ...]:
        """Exact match, overall and by kind of picture."""
        return (ExactMatch(),)

    def export(self, answers: Mapping[str, str]) -> None:
        """No grader outside reads these."""

    def drop(self, prompt_ids: Collection[str], reason: str) -> None:
        """Leaves out samples from now on."""
        left_out = [r for r, name in zip(self.references, self.prompt_ids, strict=True) if name in prompt_ids]
        self.skipped.setdefault(reason, []).extend(reference.id for reference in left_out)
        self.references = [reference for reference in self.references if reference not in left_out]

    def _reference(self, index: int) -> Reference:
        sample = generate(self.seeds[index], self.kinds[index % len(self.kinds)])
        lengths = [len(turn.answer) for turn in sample.turns]
        if self.style == "speed":
            number = lengths.index(max(lengths))
        else:
            number = Random(f"turn-{sample.seed}").randrange(len(lengths))
        turn, key = sample.turns[number], f"{sample.kind}/{sample.seed}/{number}"
        return Reference(key, (turn.answer,), group=sample.kind, question=turn.question)


class SyntheticLong(Synthetic):
    """The same pictures, each with the question that has the longest answer."""

    name, usual_style = "synthetic_long", "speed"


class SyntheticValidation(Synthetic):
    """Validation pictures."""

    name, split = "synthetic_validation", "validation"


class SyntheticImages(Synthetic):
    """Two pictures, the question being about the first one; the second is another one."""

    name = "synthetic_images"

    def show(self, image: Image.Image, seed: int) -> Prompt:
        """Both pictures."""
        return Prompt("", (image, Image.fromarray(generate(seed + 1).image)))


class SyntheticVideo(Synthetic):
    """A still video of four frames, two seconds long."""

    name = "synthetic_video"

    def show(self, image: Image.Image, seed: int) -> Prompt:
        """The video."""
        return Prompt("", videos=(Video(np.repeat(np.asarray(image)[None], 4, axis=0), 2.0),))


# One set for each kind of picture, such as `synthetic_sign`.
BY_KIND: tuple[type[Synthetic], ...] = tuple(
    type(f"Synthetic{kind.title()}", (Synthetic,), {"name": f"synthetic_{kind}", "kinds": (kind,)})
    for kind in KINDS
)
