"""Rows of the synthetic world fit the schemas of the public sources."""

import pytest
from datasets import ClassLabel, Dataset, Features, Image, List, Value

from data_modules.synthetic.schemas import to_row
from data_modules.synthetic.world import KINDS, generate

TEXT = Value("string")
FEATURES = {
    "textvqa": Features(
        {
            "image_id": TEXT,
            "question_id": Value("int32"),
            "question": TEXT,
            "question_tokens": List(TEXT),
            "image": Image(),
            "image_width": Value("int32"),
            "image_height": Value("int32"),
            "flickr_original_url": TEXT,
            "flickr_300k_url": TEXT,
            "answers": List(TEXT),
            "image_classes": List(TEXT),
            "set_name": TEXT,
            "ocr_tokens": List(TEXT),
        }
    ),
    "chartqa": Features(
        {
            "image": Image(),
            "query": TEXT,
            "label": List(TEXT),
            "human_or_machine": ClassLabel(names=["human", "machine"]),
        }
    ),
    "scienceqa": Features(
        {
            "image": Image(),
            "question": TEXT,
            "choices": List(TEXT),
            "answer": Value("int8"),
            **dict.fromkeys(("hint", "task", "grade", "subject", "topic", "category"), TEXT),
            **dict.fromkeys(("skill", "lecture", "solution"), TEXT),
        }
    ),
    "docvqa": Features(
        {
            "questionId": TEXT,
            "question": TEXT,
            "question_types": List(TEXT),
            "image": Image(),
            "docId": Value("int64"),
            "ucsf_document_id": TEXT,
            "ucsf_document_page_no": TEXT,
            "answers": List(TEXT),
            "data_split": TEXT,
        }
    ),
    "tallyqa": Features(
        {
            "answer": Value("int32"),
            "full_answer": TEXT,
            "data_source": TEXT,
            "image": Image(),
            "image_id": Value("int64"),
            "question": TEXT,
            "question_id": Value("int64"),
        }
    ),
    "llava": Features({"id": TEXT, "image": Image(), "conversations": List({"from": TEXT, "value": TEXT})}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_encode_and_decode_as_the_source(kind):
    sample = generate(101_999_999, kind)
    found = [to_row(sample, index) for index in range(len(sample.turns))]
    (source,) = {name for name, _ in found}
    rows = [row for _, row in found]
    features = FEATURES[source]
    assert all(set(row) == set(features) for row in rows)
    data = Dataset.from_list(rows, features=features)
    assert data[0]["image"].size == (128, 128)
    for row, decoded in zip(rows, data, strict=True):
        assert {**decoded, "image": None} == {**row, "image": None}


def test_answers_are_full_sentences():
    samples = {kind: generate(3, kind) for kind in KINDS}
    rows = {kind: to_row(sample, 0)[1] for kind, sample in samples.items()}
    answers = {kind: sample.turns[0].answer for kind, sample in samples.items()}
    assert rows["scene"]["conversations"][1]["value"] == answers["scene"]
    assert rows["scene"]["conversations"][0]["value"].startswith("<image>\n")
    assert rows["count"]["full_answer"] == answers["count"]
    assert rows["count"]["answer"] == samples["count"].turns[0].number
    assert rows["sign"]["answers"] == [answers["sign"]] * 10
    assert rows["document"]["answers"] == [answers["document"]]
    assert rows["chart"]["label"] == [answers["chart"]]
    assert rows["science"]["solution"] == answers["science"]
