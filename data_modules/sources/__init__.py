"""The six training sources of the paper's mixtures, one reader each."""

from data_modules.sources.base import Row, Source
from data_modules.sources.chartqa import ChartQA
from data_modules.sources.docvqa import DocVQA
from data_modules.sources.llava import Llava
from data_modules.sources.record import Picture, Record, SkipRow, picture
from data_modules.sources.scienceqa import ScienceQA
from data_modules.sources.tallyqa import TallyQA
from data_modules.sources.textvqa import TextVQA

__all__ = [
    "SOURCES",
    "ChartQA",
    "DocVQA",
    "Llava",
    "Picture",
    "Record",
    "Row",
    "ScienceQA",
    "SkipRow",
    "Source",
    "TallyQA",
    "TextVQA",
    "picture",
]

SOURCES: dict[str, type[Source]] = {
    source.name: source for source in (Llava, TextVQA, ScienceQA, DocVQA, TallyQA, ChartQA)
}
