"""The tables of docs/benchmark.md say what the evaluation sets read and ask."""

from pathlib import Path

import pytest

from data_modules.evaluation import SETS
from data_modules.evaluation.base import EXPLAIN, LETTER, READ, SHORT, EvaluationSet

DOCS = Path(__file__).resolve().parents[3] / "docs" / "benchmark.md"
PUBLIC = {name: cls for name, cls in SETS.items() if issubclass(cls, EvaluationSet)}
# Sets of one table row, which differ in which rows they take; the docs leave out what repeats the row above.
VARIANTS = {
    "mmbench_vanilla": "mmbench",
    "video_mme_medium": "video_mme_short",
    "video_mme_long": "video_mme_short",
}
NAMES = {LETTER: "*letter*", SHORT: "*short*", EXPLAIN: "*explain*", READ: "*read*"}
# Columns that depend on which copy of a set is read.
FURTHER = {
    "chartqa": "; `question`, `answer`, `type` or `query`, `label`, `human_or_machine`",
    "tallyqa": "; `qa` with `question`, `answer`, `is_simple`, or "
    "`question`, `answer`, `issimple`, `question_id`",
    "gqa": "; of the pictures `id`, `image`",
}


def listed(names):
    return ", ".join(f"`{name}`" for name in names)


def asked(text):
    return NAMES.get(text.strip(), f'"{text.strip()}"')


def schema(name, cls):
    """The row of the table of columns and prompts."""
    columns = listed(cls.columns) + FURTHER.get(name, "")
    return f"| `{name}` | {columns} | {asked(cls.instruction)} | {asked(cls.speed_instruction)} |"


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in VARIANTS])
def test_columns_and_prompts_are_those_of_the_code(name):
    assert schema(name, PUBLIC[name]) in DOCS.read_text().splitlines()


def test_variants_read_and_ask_the_same():
    for name, other in VARIANTS.items():
        variant, cls = PUBLIC[name], PUBLIC[other]
        assert {*cls.columns} <= {*variant.columns} <= {*cls.columns, "category"}
        assert (variant.hub_ids, variant.config, variant.split) == (cls.hub_ids, cls.config, cls.split)
        assert (variant.instruction, variant.speed_instruction) == (cls.instruction, cls.speed_instruction)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in VARIANTS])
def test_hub_ids_split_and_length_are_those_of_the_code(name):
    cls = PUBLIC[name]
    row = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}`"))
    _, _, ids, split, length, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    assert ids.startswith(listed(cls.hub_ids) or "none")
    assert (split, length) == (cls.split if cls.hub_ids else "file", f"{cls.max_new_tokens:,}")
