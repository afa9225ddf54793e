"""Relaxed accuracy of ChartQA: numbers may be off by five per cent."""

from __future__ import annotations

from tiger.metrics.task import Reference, TaskMetric

TOLERANCE = 0.05


def is_relaxed_match(prediction: str, target: str) -> bool:
    """Whether two numbers differ by at most 5 % of the target, or two texts are equal but for case.

    A target of zero is compared as text, "50%" is 0.5, and neither text is stripped (lmms-eval), so "0.0"
    misses "0" and "yes." misses "Yes", while 2016 matches 2015.
    """
    given, wanted = _number(prediction), _number(target)
    if given is not None and wanted:
        return abs(given - wanted) / abs(wanted) <= TOLERANCE
    return prediction.lower() == target.lower()


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


class RelaxedAccuracy(TaskMetric):
    """Relaxed accuracy (Methani et al. 2020; ChartQA), overall and by `group` (human or augmented)."""

    headline = "relaxed_accuracy"

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer, 0 or 100."""
        return 100.0 * any(is_relaxed_match(prediction, answer) for answer in reference.answers)
