"""The paper's prompt filter and its task tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TAGS = ("count", "ocr", "reasoning", "description", "visual_qa")
YES_NO_STARTS = (
    "is", "are", "was", "were", "do", "does", "did", "has", "have", "can", "could", "will", "would", "should",
)  # fmt: skip
YES_NO_WORDS = 8

_COUNT = re.compile(r"\b(?:how many|number of|counts?)\b")
_OCR = re.compile(r"\b(?:reads?|written|says?|texts?|words?|signs?|brands?)\b")
_REASONING = re.compile(r"\b(?:why|how does|explains?|which|compares?|differences?)\b")
_DESCRIPTION = re.compile(r"\b(?:describes?|captions?|what is happening)\b")


@dataclass(frozen=True)
class QuestionFilter:
    """Drops questions whose answers teach little: the paper's rules on length and on short yes/no questions.

    Attributes:
        min_words: Fewest words of a question.
        max_words: Most words of a question.
        drop_yes_no: Whether short pure yes/no questions are dropped.
        apply_to: Whose words are counted: of the question as the data set has it, or of the prompt, with the
            hint, choices or instruction that a source adds.
    """

    min_words: int = 5
    max_words: int = 60
    drop_yes_no: bool = True
    apply_to: Literal["question", "prompt"] = "question"

    def __post_init__(self) -> None:
        if not 0 <= self.min_words <= self.max_words:
            raise ValueError(f"Need 0 <= min_words <= max_words, got {self.min_words} and {self.max_words}.")

    def reason(self, question: str, answers: Sequence[str] = (), prompt: str = "") -> str | None:
        """Why a question is dropped.

        Args:
            question: The human text without image placeholders.
            answers: Reference answers, if known.
            prompt: What is asked, if more than the question.

        Returns:
            "too_few_words", "too_many_words", "yes_no", or None to keep the question.
        """
        words = len((prompt or question if self.apply_to == "prompt" else question).split())
        if words < self.min_words:
            return "too_few_words"
        if words > self.max_words:
            return "too_many_words"
        return "yes_no" if self.drop_yes_no and is_short_yes_no(question, answers) else None


def is_short_yes_no(question: str, answers: Sequence[str] = ()) -> bool:
    """Whether a question of at most eight words can only be answered with yes or no.

    Alternatives ("is it red or blue?") and questions with any other reference answer are not.
    """
    words = question.lower().split()
    if not words or len(words) > YES_NO_WORDS or words[0] not in YES_NO_STARTS or "or" in words:
        return False
    return all(answer.strip().lower().rstrip(".!") in ("yes", "no") for answer in answers)


def question_tag(question: str, source: str = "") -> str:
    """The task of a question: the first of `TAGS` whose words it has, or whose sources it comes from.

    Args:
        question: The human text.
        source: Name of the source.
    """
    text = question.lower()
    if _COUNT.search(text):
        return "count"
    if source in ("textvqa", "docvqa") or _OCR.search(text):
        return "ocr"
    if source in ("scienceqa", "chartqa") or _REASONING.search(text):
        return "reasoning"
    return "description" if _DESCRIPTION.search(text) else "visual_qa"
