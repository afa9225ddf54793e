"""ANLS: how near an answer comes to the text of a document."""

from __future__ import annotations

from collections.abc import Sequence

from torchmetrics.functional.text import edit_distance

from tiger.metrics.task import Reference, TaskMetric

THRESHOLD = 0.5


def anls(prediction: str, answers: Sequence[str]) -> float:
    """The best over all accepted answers of 1 - edits / length, 0 below one half, in [0, 1].

    Case and runs of spaces do not count as edits. The length is that of the longer text before spaces are
    joined, as in lmms-eval.
    """
    best = max(_similarity(prediction, answer) for answer in answers)
    return best if best >= THRESHOLD else 0.0


def _similarity(prediction: str, answer: str) -> float:
    longest = max(len(prediction), len(answer))
    if not longest:
        return 1.0
    given, wanted = (" ".join(text.lower().split()) for text in (prediction, answer))
    return 1 - float(edit_distance(given, wanted, reduction="sum")) / longest


class Anls(TaskMetric):
    """Average normalised Levenshtein similarity (Biten et al. 2019; DocVQA), mean over questions.

    A similarity of exactly one half counts one half, as in lmms-eval and VLMEvalKit; the paper's definition
    and the package `anls` give 0 there.
    """

    headline = "anls"

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer."""
        return 100 * anls(prediction, reference.answers)
