"""NLVR2: is a statement about two images true?"""

from __future__ import annotations

import re

from tiger.metrics.task import Reference, TaskMetric

_VERDICTS = {"true": True, "yes": True, "false": False, "no": False}
_LETTERS = {"A": True, "B": False}


def verdict(answer: str) -> bool | None:
    """True or false, None where an answer says neither or both.

    Words true, yes, false and no decide; without them a leading letter, A for true and B for false.
    """
    found = {_VERDICTS[word] for word in re.findall(r"[a-z]+", answer.lower()) if word in _VERDICTS}
    letter = re.match(r"\W*([AB])\b", answer)
    if not found and letter:
        found = {_LETTERS[letter[1]]}
    return found.pop() if len(found) == 1 else None


class Nlvr2(TaskMetric):
    """Accuracy, and consistency: the share of statements (`group`) judged rightly for all their image pairs.

    Source: Suhr et al. 2019.
    """

    headline = "accuracy"

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer, 0 or 100.

        Raises:
            ValueError: If the reference is neither true nor false.
        """
        wanted = verdict(reference.answers[0])
        if wanted is None:
            raise ValueError(f"Sample {reference.id!r} has {reference.answers[0]!r}; give True or False.")
        return 100.0 * (verdict(prediction) is wanted)

    def compute(self) -> dict[str, float]:
        """Accuracy over all samples and consistency over statements."""
        statements: dict[str, list[float]] = {}
        for prediction, reference in self.gathered():
            points = self.score(prediction, reference)
            statements.setdefault(reference.group or reference.id, []).append(points)
        scores = [points for group in statements.values() for points in group]
        return {
            "accuracy": sum(scores) / len(scores),
            "consistency": sum(map(min, statements.values())) / len(statements),
        }
