"""Every published form of a row becomes a record or a reason."""

import io

import pytest
from PIL import Image

from data_modules.sources import (
    ChartQA,
    DocVQA,
    Llava,
    ScienceQA,
    SkipRow,
    TallyQA,
    TextVQA,
    decode_image,
)
from data_modules.synthetic.schemas import to_row
from data_modules.synthetic.world import KINDS, generate
from data_modules.world_rows import KIND_OF_SOURCE

SOURCES = {source.name: source for source in (Llava, TextVQA, ScienceQA, DocVQA, TallyQA, ChartQA)}
PICTURE = Image.new("RGB", (6, 4), "red")


def encoded(mode="RGB", form="PNG"):
    buffer = io.BytesIO()
    Image.new(mode, (6, 4)).save(buffer, form)
    return buffer.getvalue()


def reason(source, row):
    with pytest.raises(SkipRow) as caught:
        source.parse(row, "k")
    return caught.value.reason


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_world_keep_question_and_answer(kind):
    sample = generate(5, kind)
    for index, turn in enumerate(sample.turns):
        name, row = to_row(sample, index)
        assert KIND_OF_SOURCE[name] == kind
        record = SOURCES[name]().parse(row, "train/5")
        assert (record.prompt, record.answers[0]) == (turn.question, turn.answer)
        assert (record.source, record.id, record.images[0].size) == (name, "train/5", (128, 128))
        assert record.licence


@pytest.mark.parametrize(
    ("source", "row", "question", "answers"),
    [
        (
            Llava,
            {
                "conversations": [
                    {"from": "human", "value": "What is it?\n<image>"},
                    {"from": "gpt", "value": "A cat."},
                    {"from": "human", "value": "Why?"},
                ]
            },
            "What is it?",
            ("A cat.",),
        ),
        (
            Llava,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "text": None}, {"type": "text", "text": "Q?"}],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "R."}]},
                ]
            },
            "Q?",
            ("R.",),
        ),
        (TextVQA, {"question": "Q?", "answers": ["a", "b", "b", "a", "c"]}, "Q?", ("a", "b", "b", "a", "c")),
        (TextVQA, {"question": "Q?", "answers": ["c", "b", "b"]}, "Q?", ("b", "b", "c")),
        (DocVQA, {"question": "Q?", "answers": ["x", "y"]}, "Q?", ("x", "y")),
        (ChartQA, {"query": "Q?", "label": ["7"]}, "Q?", ("7",)),
        (ChartQA, {"query": "Q?", "label": "7"}, "Q?", ("7",)),
        (ChartQA, {"question": "Q?", "answer": "7", "type": "human_test"}, "Q?", ("7",)),
        (TallyQA, {"question": "Q?", "answer": 0}, "Q?", ("0",)),
        (
            TallyQA,
            {"texts": [{"user": "Q?", "assistant": "2."}, {"user": "R?", "assistant": "3."}]},
            "Q?",
            ("2.",),
        ),
        (TallyQA, {"texts": {"user": ["Q?", "R?"], "assistant": ["2.", "3."]}}, "Q?", ("2.",)),
        (ScienceQA, {"question": "Q?", "choices": ["a", "b"], "answer": 1, "solution": ""}, "Q?", ("b",)),
    ],
)
def test_published_forms(source, row, question, answers):
    record = source().parse({"image": PICTURE, **row}, "k")
    assert (record.prompt, record.answers) == (question, answers)


def test_scienceqa_can_show_hint_and_choices():
    row = {"image": PICTURE, "question": "Q?", "choices": ["a", "b"], "answer": 0, "hint": "Look."}
    assert ScienceQA(with_choices=True).parse(row, "k").prompt == "Look.\nQ?\nA. a\nB. b"
    assert ScienceQA(with_choices=True).parse(row | {"hint": "nan"}, "k").prompt == "Q?\nA. a\nB. b"


@pytest.mark.parametrize("answers", [None, [], [""] * 10])
def test_missing_answers(answers):
    row = {"image": PICTURE, "question": "Q?", "answers": answers}
    assert reason(DocVQA(), row) == "no_answer"
    assert DocVQA(require_answers=False).parse(row, "k").answers == ()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"image": None}, "no_image"),
        ({}, "no_image"),
        ({"image": b"no picture"}, "unreadable_image"),
        ({"image": encoded()[:40]}, "unreadable_image"),
        ({"image": {"bytes": None, "path": None}}, "unreadable_image"),
        ({"image": "nowhere.png"}, "missing_image"),
        ({"image": Image.new("RGB", (1, 300))}, "extreme_aspect"),
        ({"image": PICTURE, "question": None}, "malformed"),
        ({"image": PICTURE, "question": " <image> "}, "no_question"),
    ],
)
def test_bad_rows_have_a_reason(row, expected):
    assert reason(DocVQA(), {"question": "Q?", "answers": ["a"], **row}) == expected


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize(
    "row", [{}, {"image": PICTURE}, {"question": 3, "texts": []}, {"texts": {"user": "Q?"}}]
)
def test_rows_without_the_fields_are_malformed(source, row):
    assert reason(source(), row) == "malformed"


@pytest.mark.parametrize("value", [-1, 5, None])
def test_scienceqa_answer_out_of_range(value):
    row = {"image": PICTURE, "question": "Q?", "choices": ["a", "b"], "answer": value, "solution": ""}
    assert reason(ScienceQA(), row) == ("malformed" if value == 5 else "no_answer")


def test_tallyqa_takes_coco_paths_only(tmp_path):
    (tmp_path / "train2014").mkdir()
    PICTURE.save(tmp_path / "train2014" / "x.png")
    row = {"question": "Q?", "answer": 3}
    assert TallyQA(tmp_path).parse(row | {"image": "train2014/x.png"}, "k").images[0].size == (6, 4)
    assert reason(TallyQA(tmp_path), row | {"image": "VG_100K/x.png"}) == "not_coco"


@pytest.mark.parametrize("mode", ["P", "L", "RGBA", "1"])
def test_pictures_become_rgb(mode):
    image = decode_image({"bytes": encoded(mode), "path": "x.jpg"})
    assert (image.mode, image.size) == ("RGB", (6, 4))
