"""TextVQA: questions about text in photographs, ten answers each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from data_modules.sources.base import Row, Source, texts


class TextVQA(Source):
    """Rows of `lmms-lab/textvqa`; the target is the most frequent answer, the first of equals."""

    name = "textvqa"
    licence = "CC BY 4.0"
    repos = ("lmms-lab-encoder/textvqa", "lmms-lab/textvqa")
    columns = (("image", "question", "answers"),)

    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question and all its answers, most frequent first."""
        answers = texts(row.get("answers"))
        counts = Counter(answers)
        return row["question"], sorted(answers, key=lambda answer: -counts[answer])
