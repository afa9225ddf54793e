"""The six training sources of the paper's mixtures, one reader each."""

from data_modules.sources.base import Record, Row, SkipRow, Source, decode_image
from data_modules.sources.chartqa import ChartQA
from data_modules.sources.docvqa import DocVQA
from data_modules.sources.llava import Llava
from data_modules.sources.scienceqa import ScienceQA
from data_modules.sources.tallyqa import TallyQA
from data_modules.sources.textvqa import TextVQA

__all__ = [
    "ChartQA",
    "DocVQA",
    "Llava",
    "Record",
    "Row",
    "ScienceQA",
    "SkipRow",
    "Source",
    "TallyQA",
    "TextVQA",
    "decode_image",
]
