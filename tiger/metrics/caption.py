"""Caption accuracy: how many words of a caption people use for the same image."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tiger.metrics.ptb import python_words
from tiger.metrics.task import Reference, TaskMetric


def counts(words: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """Words of a caption that a reference has as often, all its words, and the nearest reference length."""
    most: Counter[str] = Counter()
    for reference in references:
        most |= Counter(reference)
    nearest = min((abs(len(reference) - len(words)), len(reference)) for reference in references)[1]
    return (Counter(words) & most).total(), len(words), nearest


def bleu1(hits: int, length: int, wanted: int) -> float:
    """Precision of words times BLEU's penalty for brevity, in [0, 1]."""
    return hits / length * min(1.0, math.exp(1 - wanted / length)) if length else 0.0


class CaptionAccuracy(TaskMetric):
    """Caption accuracy as a number from 0 to 100: BLEU-1 (Papineni et al. 2002) over the whole set.

    The paper prints a "Caption Acc." between 0 and 1 for COCO Caption and calls it the standard captioning
    score of the setting, without naming one. BLEU-1 is the standard score that has this range, a value for
    one caption and a reading as accuracy: the share of a caption's words that some reference has, lowered
    for captions shorter than the references. CIDEr has no upper bound of 1; report it beside.
    Words come from the tokenizer "python" of `tiger.metrics.ptb`.
    """

    headline = "caption_accuracy"

    def settings(self) -> dict[str, str]:
        """The score behind the name and the tokenizer."""
        return {"definition": "BLEU-1", "tokenizer": "python"}

    def score(self, prediction: str, reference: Reference) -> float:
        """BLEU-1 of one caption, 0 to 100."""
        own, *others = python_words([prediction, *reference.answers])
        return 100 * bleu1(*counts(own, others))

    def compute(self) -> dict[str, float]:
        """BLEU-1 of all captions together: their counts are added up before the quotient is taken."""
        totals = [0, 0, 0]
        for prediction, reference in self.gathered():
            own, *others = python_words([prediction, *reference.answers])
            totals = [a + b for a, b in zip(totals, counts(own, others), strict=True)]
        return {"caption_accuracy": 100 * bleu1(*totals)}
