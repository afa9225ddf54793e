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

    def groups(self, reference: Reference) -> Sequence[str]:
        """What a sample is also reported under."""
        return [reference.group] if reference.group else []

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

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gathers the samples of all ranks; arguments are those of `torchmetrics.Metric.sync`."""
        if isinstance(self.samples, list) and not self.samples:
            # torchmetrics 1.9 sends an empty list as floats, which ranks that send bytes cannot receive.
            self.samples = [torch.empty(0, dtype=torch.uint8, device=self.device)]
        super().sync(*args, **kwargs)

    def gathered(self) -> list[tuple[str, Reference]]:
        """All answers with their references, each sample once, by id.

        Raises:
            ValueError: If there are none, or two samples share an id.
        """
        state = dim_zero_cat(self.samples) if len(self.samples) else torch.empty(0, dtype=torch.uint8)
        found: dict[str, str] = {}
        for line in bytes(state.cpu().numpy()).decode().splitlines():
            name = json.loads(line)[1]["id"]
            if found.setdefault(name, line) != line:
                raise ValueError(f"Two different samples have the id {name!r}; ids must differ within a set.")
        if not found:
            raise ValueError("No answer was added; there is nothing to score.")
        rows = (json.loads(found[name]) for name in sorted(found))
        return [(text, Reference(**{**row, "answers": tuple(row["answers"])})) for text, row in rows]

    def compute(self) -> dict[str, float]:
        """The mean of `score` over all samples, then over each group as `headline/group`.

        Raises:
            ValueError: If there are no answers.
        """
        scores: list[float] = []
        groups: dict[str, list[float]] = {}
        for prediction, reference in self.gathered():
            points = self.score(prediction, reference)
            assert points is not None, "a metric without points of one sample needs its own compute"
            scores.append(points)
            for group in self.groups(reference):
                groups.setdefault(group, []).append(points)
        result = {self.headline: sum(scores) / len(scores)}
        for group, points_of_group in sorted(groups.items()):
            result[f"{self.headline}/{group}"] = sum(points_of_group) / len(points_of_group)
        return result
