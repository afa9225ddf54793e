"""MM-Vet: free answers, graded by a rule or by a judge, or exported for the official grader."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tiger.metrics.judge import Judge
from tiger.metrics.task import Reference, TaskMetric

FREE_TEXT = 8  # words from which a reference is prose: no answer holds it word for word


def rule_proxy(prediction: str, answer: str) -> float:
    """How much of a reference an answer holds, in [0, 1]: a stand-in for a judge, not its grade.

    Alternatives are separated by <OR> and the best counts; of parts joined by <AND> the share counts that is
    held. A part is held if its words occur in a row, numbers being compared by value; of prose of eight words
    or more the F1 of words counts.
    """
    given = _words(prediction)
    return max(_held(given, alternative.split("<AND>")) for alternative in answer.split("<OR>"))


def _held(given: list[str], parts: Sequence[str]) -> float:
    return sum(_part(given, _words(part)) for part in parts) / len(parts)


def _part(given: list[str], wanted: list[str]) -> float:
    if len(wanted) >= FREE_TEXT:
        common = (Counter(given) & Counter(wanted)).total()
        return 2 * common / (len(given) + len(wanted))
    starts = range(len(given) - len(wanted) + 1)
    return float(bool(wanted) and any(given[start : start + len(wanted)] == wanted for start in starts))


def _words(text: str) -> list[str]:
    """Lower-case words; numbers without thousands separators and trailing zeros."""
    words = re.findall(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+", text.lower())
    return [f"{float(word.replace(',', '')):.12g}" if word[-1].isdecimal() else word for word in words]


class MMVet(TaskMetric):
    """MM-Vet (Yu et al. 2023): mean grade, overall and by capability (`group`, such as "ocr,math").

    The published scores are grades of GPT-4 under the benchmark's own prompt: give `official_answers` to the
    official grader to get them. Here the headline says what graded: `rule_proxy`, or `judge` for a model of
    your choice under our own instruction. Neither compares with published scores.

    Args:
        judge: Grades the answers; None for the rule proxy.
        kwargs: Options of `torchmetrics.Metric`.
    """

    def __init__(self, judge: Judge | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.judge = judge
        self.headline = "judge" if judge else "rule_proxy"

    def settings(self) -> dict[str, str]:
        """The grader, and how many answers a judge gave no grade."""
        if self.judge is None:
            return {"grader": "rule_proxy"}
        return {"grader": self.judge.model, "ungraded": str(self.judge.num_ungraded)}

    def groups(self, reference: Reference) -> list[str]:
        """The capabilities that a question needs."""
        return [name for name in reference.group.split(",") if name]

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer.

        Raises:
            ValueError: If the judge gives no reply.
        """
        answer = reference.answers[0]
        if self.judge is None:
            return 100 * rule_proxy(prediction, answer)
        return 100 * self.judge.grade(reference.question, answer, prediction)


def official_answers(answers: Mapping[str, str]) -> str:
    """Answers by question id ("v1_0") as the JSON text that the official grader reads."""
    return json.dumps(dict(answers), indent=2, ensure_ascii=False)
