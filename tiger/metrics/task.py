"""What every task metric shares: references, the state that merges over ranks, and means by group."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


@dataclass(frozen=True)
class Reference:
    """What the answer to one prompt is judged by.

    Attributes:
        id: Name of the sample, its own within a set.
        answers: Accepted answers, captions, or the letter of the right choice.
        choices: Text of each choice by its letter; empty for open questions.
        group: What belongs together (the base question of circular copies, the statement of NLVR2) or is
            reported apart (human or augmented, simple or complex, a POPE category, the length of a video).
        question: The question as it was asked, without instructions.
    """

    id: str
    answers: tuple[str, ...]
    choices: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    question: str = ""


class TaskMetric(Metric, ABC):
    """Scores of answers in points from 0 to 100, higher is better; CIDEr alone may exceed 100.

    The state is the text of answers and references, gathered over ranks and put in the order of ids, so
    shards merge to the last bit. A sample that a padding sampler repeats counts once.

    A metric gives `headline` and `score`; others than means over samples give their own `compute`.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    full_state_update = False
    headline: str
    samples: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("samples", [], dist_reduce_fx="cat")

    @abstractmethod
    def score(self, prediction: str, reference: Reference) -> float | None:
        """Points of one answer, 0 to 100; None where only a whole set has a score."""

    def settings(self) -> dict[str, str]:
        """What the figures depend on beside the answers, to stand next to them in a report."""
        return {}

    def update(self, predictions: Sequence[str], references: Sequence[Reference]) -> None:
        """Adds answers.

        Args:
            predictions: Texts of the answers.
            references: What each is judged by.

        Raises:
            ValueError: If their numbers differ, or a reference has no answers.
        """
        if len(predictions) != len(references):
            raise ValueError(f"{len(predictions)} answers for {len(references)} references; give one each.")
        for reference in references:
            if not reference.answers:
                raise ValueError(
                    f"Sample {reference.id!r} has no reference answers (hidden test labels?). Score a split "
                    "with answers."
                )
        rows = zip(predictions, references, strict=True)
        lines = [json.dumps([prediction, asdict(reference)]) + "\n" for prediction, reference in rows]
        self.samples += [
            torch.tensor(list(line.encode()), dtype=torch.uint8, device=self.device) for line in lines
        ]

    def gathered(self) -> list[tuple[str, Reference]]:
        """All answers with their references, each sample once, by id.

        Raises:
            ValueError: If there are none, or two samples share an id.
        """
        if not self.samples or not (state := dim_zero_cat(self.samples)).numel():
            raise ValueError("No answer was added; there is nothing to score.")
        found: dict[str, str] = {}
        for line in bytes(state.cpu().numpy()).decode("ascii").splitlines():
            name = json.loads(line)[1]["id"]
            if found.setdefault(name, line) != line:
                raise ValueError(f"Two different samples have the id {name!r}; ids must differ within a set.")
        rows = (json.loads(found[name]) for name in sorted(found))
        return [(text, Reference(**{**row, "answers": tuple(row["answers"])})) for text, row in rows]

    def compute(self) -> dict[str, float]:
        """The mean of `score` over all samples, then over each group as `headline/group`.

        Raises:
            ValueError: If there are no answers.
        """
        scores: dict[str, list[float]] = {self.headline: []}
        for prediction, reference in self.gathered():
            points = self.score(prediction, reference) or 0.0
            for name in (self.headline, f"{self.headline}/{reference.group}")[: 1 + bool(reference.group)]:
                scores.setdefault(name, []).append(points)
        return {name: sum(points) / len(points) for name, points in scores.items()}
