"""DocVQA: questions about scanned documents; the public test split has no answers."""

from __future__ import annotations

from collections.abc import Sequence

from data_modules.sources.base import Row, Source, texts


class DocVQA(Source):
    """Rows of `lmms-lab/DocVQA`, `HuggingFaceM4/DocumentVQA` or `pixparse/docvqa-single-page-questions`."""

    name = "docvqa"
    licence = "RRC and UCSF terms"
    repos = ("lmms-lab-encoder/DocVQA", "lmms-lab/DocVQA")
    config = "DocVQA"
    columns = (("image", "question", "answers"),)

    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question and all its answers."""
        return row["question"], texts(row.get("answers"))
