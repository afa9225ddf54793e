"""Evaluation sets: the paper's benchmarks and the synthetic world, each with its prompts and its metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from data_modules.evaluation.base import AS_PUBLISHED, EvaluationSet, SetOptions
from data_modules.evaluation.captions import CocoCaption, CocoKarpathy
from data_modules.evaluation.mmbench import MMBench, MMBenchVanilla
from data_modules.evaluation.mmvet import MMVet
from data_modules.evaluation.multi_image import NLVR2, MuirBench
from data_modules.evaluation.scienceqa import ScienceQAImage
from data_modules.evaluation.short_answers import GQA, ChartQA, DocVQA, Pope, TextVQA
from data_modules.evaluation.synthetic import (
    BY_KIND,
    Synthetic,
    SyntheticImages,
    SyntheticLong,
    SyntheticValidation,
    SyntheticVideo,
)
from data_modules.evaluation.tallyqa import TallyQA
from data_modules.evaluation.video_mme import VideoMMELong, VideoMMEMedium, VideoMMEShort
from tiger.backbones.base import Prompt
from tiger.metrics.task import Reference, TaskMetric

__all__ = ["AS_PUBLISHED", "SETS", "SetOptions", "TaskSet", "load_set"]

_WORLD: tuple[type[Synthetic], ...] = (
    *(Synthetic, SyntheticLong, SyntheticValidation, SyntheticImages, SyntheticVideo),
    *BY_KIND,
)
_PUBLIC: tuple[type[EvaluationSet], ...] = (
    *(MMBench, MMBenchVanilla, ScienceQAImage, TextVQA, MMVet, CocoCaption, CocoKarpathy),
    *(VideoMMEShort, VideoMMEMedium, VideoMMELong, NLVR2, MuirBench),
    *(TallyQA, ChartQA, DocVQA, Pope, GQA),
)
_ALL: tuple[type[Synthetic] | type[EvaluationSet], ...] = (*_WORLD, *_PUBLIC)
SETS = {cls.name: cls for cls in _ALL}


class TaskSet(Protocol):
    """What an evaluation set offers.

    Attributes:
        style: "score" or "speed".
        references: What each sample is judged by.
        skipped: Ids of samples that cannot be used, by reason.
    """

    style: str
    references: list[Reference]
    skipped: dict[str, list[str]]

    def __len__(self) -> int: ...

    @property
    def name(self) -> str:
        """Name of the set."""

    @property
    def label(self) -> str:
        """Name and, unless it is the usual one, style."""

    @property
    def prompt_ids(self) -> list[str]:
        """Ids of all prompts, without making them."""

    def settings(self) -> dict[str, Any]:
        """What prompts and references depend on beside their ids; `drop` leaves it as it is."""

    @property
    def answer_limit(self) -> int:
        """Longest answer, tokens."""

    def drop(self, prompt_ids: Collection[str], reason: str) -> None:
        """Leaves out samples, with all copies of their questions, from now on."""

    def prompt(self, index: int) -> Prompt:
        """Makes the request of one sample."""

    def metrics(self) -> Sequence[TaskMetric]:
        """New metrics of this set; the first figure of the first one is the set's score."""

    def export(self, answers: Mapping[str, str]) -> str | None:
        """Answers by id as a grader outside reads them; None where there is none."""


def load_set(
    name: str,
    limit: int | None = None,
    seed: int = 0,
    options: SetOptions = AS_PUBLISHED,
) -> TaskSet:
    """Opens an evaluation set.

    Args:
        name: A key of `SETS`, and `@speed` behind it for prompts that ask for long answers.
        limit: Most samples; None for all.
        seed: Seed of the subset.
        options: Where it is read from.

    Raises:
        FileNotFoundError: If the data set or its media cannot be found.
        ValueError: If there is no such set or style, or no sample of it can be used.
    """
    key, _, style = name.partition("@")
    if key not in SETS:
        raise ValueError(f"Unknown data set {key!r}; choose one of {', '.join(SETS)}.")
    given = {"style": style} if style else {}
    return SETS[key](limit=limit, seed=seed, options=options, **given)
