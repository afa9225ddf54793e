"""POPE: does a model see objects that are not there?"""

from __future__ import annotations

from collections.abc import Sequence

from tiger.metrics.task import Reference, TaskMetric


def says_yes(answer: str) -> bool:
    """The benchmark's own reading: "no" if the first sentence has the word no or not, else "yes"."""
    words = answer.split(".")[0].replace(",", "").split(" ")
    return not {"No", "not", "no"} & set(words)


def ratios(given: Sequence[bool], wanted: Sequence[bool]) -> dict[str, float]:
    """Accuracy, precision, recall and F1 of "yes" and the share of "yes", in points; 0 for no "yes"."""
    hits = sum(g and w for g, w in zip(given, wanted, strict=True))
    right = sum(g == w for g, w in zip(given, wanted, strict=True))
    return {
        "accuracy": 100 * right / len(given),
        "precision": 100 * hits / max(sum(given), 1),
        "recall": 100 * hits / max(sum(wanted), 1),
        "f1": 200 * hits / max(sum(given) + sum(wanted), 1),
        "yes_ratio": 100 * sum(given) / len(given),
    }


class Pope(TaskMetric):
    """Accuracy, precision, recall, F1 and ratio of "yes" (Li et al. 2023), overall and by category.

    `yes_ratio` is that of the answers, as in the benchmark's code; lmms-eval gives that of the references.
    """

    headline = "accuracy"

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer, 0 or 100.

        Raises:
            ValueError: If the reference is neither yes nor no.
        """
        return 100.0 * (says_yes(prediction) == _is_yes(reference))

    def compute(self) -> dict[str, float]:
        """The ratios over all samples, then over each group as `name/group`."""
        rows = [(says_yes(text), _is_yes(reference), reference.group) for text, reference in self.gathered()]
        result = ratios([row[0] for row in rows], [row[1] for row in rows])
        for group in sorted({row[2] for row in rows if row[2]}):
            given, wanted = zip(*(row[:2] for row in rows if row[2] == group), strict=True)
            result |= {f"{name}/{group}": value for name, value in ratios(given, wanted).items()}
        return result


def _is_yes(reference: Reference) -> bool:
    answer = reference.answers[0].strip().lower()
    if answer not in ("yes", "no"):
        raise ValueError(f"Sample {reference.id!r} has the answer {answer!r}; POPE knows yes and no.")
    return answer == "yes"
