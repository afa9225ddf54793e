"""Every published form of a row becomes a record or a reason."""

import io

import pytest
from PIL import Image, ImageFile

from data_modules.sources import (
    ChartQA,
    DocVQA,
    Llava,
    ScienceQA,
    SkipRow,
    TallyQA,
    TextVQA,
    picture,
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
        assert record.images[0].decode().tobytes() == sample.image.tobytes()


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
    assert ScienceQA(with_choices=True).parse(row, "k").question == "Q?"
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
    name, of_2017 = "val2014/COCO_val2014_000000000042.jpg", "train2017/000000000042.jpg"
    row = {"question": "Q?", "answer": 3, "image": name}
    for path, guard, other in ((of_2017, True, False), (name, False, True)):
        root = tmp_path / path.split("/")[0]
        (root / path).parent.mkdir(parents=True)
        PICTURE.save(root / path)
        assert TallyQA(root, only_train2017=guard).parse(row, "k").images[0].size == (6, 4)
        assert reason(TallyQA(root, only_train2017=other), row) == "missing_image"
    assert reason(TallyQA(tmp_path), row | {"image": "VG_100K/7.jpg"}) == "not_coco"


def test_llava_takes_coco_paths_only(tmp_path):
    talk = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]
    (tmp_path / "coco" / "train2017").mkdir(parents=True)
    PICTURE.save(tmp_path / "coco" / "train2017" / "000000000042.jpg")
    record = Llava(tmp_path).parse({"image": "coco/train2017/000000000042.jpg", "conversations": talk}, "k")
    assert (record.question, record.images[0].name) == ("What is it?", "coco/train2017/000000000042.jpg")
    assert reason(Llava(tmp_path), {"image": "gqa/images/1.jpg", "conversations": talk}) == "not_coco"
    assert reason(Llava(tmp_path), {"conversations": talk}) == "no_image"
    absent = {"image": "coco/train2017/000000000007.jpg", "conversations": talk}
    assert reason(Llava(tmp_path), absent) == "missing_image"


def test_equal_content_is_the_same_picture(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded())
    by_path, by_bytes = picture("a.png", tmp_path), picture({"bytes": encoded(), "path": "b.png"})
    assert by_path.identity == by_bytes.identity != picture(encoded("L")).identity
    assert (by_path.name, by_bytes.name) == ("a.png", "b.png")


def test_only_the_header_is_read_before_a_picture_is_decoded(monkeypatch):
    buffer = io.BytesIO()
    Image.effect_noise((60, 40), 90).save(buffer, "PNG")
    content = buffer.getvalue()
    whole, cut = picture(content), picture(content[: len(content) // 2])
    assert whole.size == cut.size == whole.decode().size == (60, 40)
    with pytest.raises(SkipRow) as caught:
        cut.decode()
    assert caught.value.reason == "unreadable_image"
    row = {"image": content, "question": "Q?", "answers": ["a"]}
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert DocVQA().parse(row, "k").content == DocVQA().parse(row, "k").content
    with pytest.raises(pytest.fail.Exception, match="decoded"):
        whole.decode()


@pytest.mark.parametrize(
    ("mode", "form"), [("P", "PNG"), ("L", "PNG"), ("RGBA", "PNG"), ("1", "PNG"), ("CMYK", "JPEG")]
)
def test_pictures_become_rgb(mode, form):
    image = picture({"bytes": encoded(mode, form), "path": "x.jpg"}).decode()
    assert (image.mode, image.size) == ("RGB", (6, 4))


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_other_columns_are_refused(source):
    with pytest.raises(ValueError, match=rf"{source.name}: expected the columns \(.*found \(text, label\)"):
        source.check_columns(["text", "label"])
    for columns in source.columns:
        source.check_columns([*columns, "more"])
    source.check_columns(["texts", "images"])
