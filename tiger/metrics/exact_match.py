"""Exact match of GQA: the same words, whatever their case and punctuation."""

from __future__ import annotations

import string

from tiger.metrics.task import Reference, TaskMetric

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normal(text: str) -> str:
    """Lower case, without ASCII punctuation and outer spaces."""
    return text.lower().translate(_NO_PUNCTUATION).strip()


class ExactMatch(TaskMetric):
    """Share of answers equal to an accepted one but for case and punctuation (Hudson and Manning 2019)."""

    headline = "exact_match"

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer, 0 or 100."""
        return 100.0 * (normal(prediction) in map(normal, reference.answers))
