"""Accuracy of counts (TallyQA)."""

from __future__ import annotations

import re

from tiger.metrics.task import Reference, TaskMetric

NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
WORDS = {"none": "0"} | {word: str(value) for value, word in enumerate(NUMBER_WORDS)}
_NUMBER = re.compile(rf"\d+|\b(?:{'|'.join(WORDS)})\b")


def count(text: str) -> str | None:
    """The first number of a text, without leading zeros, or None; words from zero to twenty count."""
    found = _NUMBER.search(text.lower())
    return str(int(WORDS.get(found[0], found[0]))) if found else None


class CountingAccuracy(TaskMetric):
    """Share of right counts (Acharya et al. 2019), overall and by `group` (simple or complex).

    One-word answers are compared as PaliGemma does; of a sentence the first number counts.
    """

    headline = "accuracy"

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer, 0 or 100.

        Raises:
            ValueError: If a reference answer is not a number.
        """
        wanted = [count(answer) for answer in reference.answers]
        if None in wanted:
            raise ValueError(f"Sample {reference.id!r} has {reference.answers} as counts; give numbers.")
        return 100.0 * (count(prediction) in wanted)
