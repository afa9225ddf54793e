"""ChartQA: questions about charts."""

from __future__ import annotations

from collections.abc import Sequence

from data_modules.sources.base import Row, Source, texts


class ChartQA(Source):
    """Rows of `HuggingFaceM4/ChartQA` or `ahmed-masry/ChartQA` (query, label), or of `lmms-lab/ChartQA`."""

    name = "chartqa"
    licence = "GPL-3.0"
    repos = ("HuggingFaceM4/ChartQA", "lmms-lab-encoder/ChartQA", "lmms-lab/ChartQA")
    columns = (("image", "query", "label"), ("image", "question", "answer"))

    def read(self, row: Row) -> tuple[str, Sequence[str]]:
        """The question and its answers."""
        if "query" in row:
            return row["query"], texts(row.get("label"))
        return row["question"], texts(row.get("answer"))
