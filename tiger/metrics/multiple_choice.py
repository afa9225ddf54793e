"""Accuracy of multiple-choice answers, plain and circular."""

from __future__ import annotations

from typing import Any

from tiger.metrics.choice_rules import RULES
from tiger.metrics.task import Reference, TaskMetric


class MultipleChoice(TaskMetric):
    """Share of answers that choose the right letter, overall and by `group`.

    Groups are what the benchmark reports apart: the length of a video (Video-MME), the task (MuirBench), the
    subject (ScienceQA). An answer from which no letter can be read is wrong.

    Args:
        rule: How a letter is read: "vlmeval", "lmms", "videomme", "scienceqa" or "muirbench", see
            `tiger.metrics.choice_rules`.
        kwargs: Options of `torchmetrics.Metric`.

    Raises:
        ValueError: If the rule is unknown.
    """

    headline = "accuracy"

    def __init__(self, rule: str = "lmms", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if rule not in RULES:
            raise ValueError(f"Unknown rule {rule!r}; choose one of {', '.join(RULES)}.")
        self.rule = rule

    def settings(self) -> dict[str, str]:
        """The rule."""
        return {"rule": self.rule}

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer, 0 or 100.

        Raises:
            ValueError: If the right letter is not among the choices.
        """
        right = reference.answers[0]
        if right not in reference.choices:
            raise ValueError(
                f"Sample {reference.id!r}: the right answer {right!r} is none of the choices "
                f"{', '.join(reference.choices) or '(none given)'}. Give letters with their texts."
            )
        return 100.0 * (RULES[self.rule](prediction, reference) == right)


class CircularChoice(MultipleChoice):
    """MMBench's CircularEval: a question counts if it is answered rightly with the options in every order.

    Copies of a question share their `group`, the id of the original. Figures:

    - `circular_accuracy`: share of questions of which all copies are right,
    - `vanilla_accuracy`: share of originals that are right.
    """

    headline = "circular_accuracy"

    def compute(self) -> dict[str, float]:
        """Circular and vanilla accuracy.

        Raises:
            ValueError: If copies come without their original.
        """
        copies: dict[str, dict[str, float]] = {}
        for prediction, reference in self.gathered():
            points = self.score(prediction, reference)
            copies.setdefault(reference.group or reference.id, {})[reference.id] = points
        if lost := [name for name, points in copies.items() if name not in points]:
            raise ValueError(
                f"{len(lost)} questions have copies but no original, {lost[0]!r} first; their `group` must "
                "be the id of the original. Keep or drop all copies of a question together."
            )
        return {
            "circular_accuracy": sum(min(points.values()) for points in copies.values()) / len(copies),
            "vanilla_accuracy": sum(points[name] for name, points in copies.items()) / len(copies),
        }
