"""Rows on disk by number: JSON of any layout, splits in a drawn order, the start of a stream."""

import json
import pickle

import pytest
from datasets import Dataset

from data_modules import table_rows
from data_modules.table_rows import JsonRows, TableRows, fetch

RECORDS = [
    {"id": 1, "text": 'größer, [x] {y} \\ " 日本'},
    {"id": "b"},
    {"text": "z" * 90, "list": [{"a": [1]}]},
]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 22])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORDS, ensure_ascii=False),
        json.dumps(RECORDS, indent=2, ensure_ascii=False) + "\n",
        "\r\n".join(json.dumps(record) for record in RECORDS),
        "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS) + "\n\n",
    ],
    ids=["array", "indented", "lines", "utf8 lines"],
)
def test_json_of_any_layout(tmp_path, monkeypatch, text, chunk):
    monkeypatch.setattr(table_rows, "CHUNK", chunk)
    (tmp_path / "a.json").write_bytes(text.encode())
    rows = JsonRows(tmp_path / "a.json")
    assert [rows[i] for i in (2, 0, 1)] == [RECORDS[2], RECORDS[0], RECORDS[1]]
    assert len(pickle.loads(pickle.dumps(rows))) == 3
    assert rows.column_names == ["id", "list", "text"]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": ', '[{"a": 1}, oops]', '[{"a": 1}} x'])
def test_broken_json_is_named(tmp_path, text):
    with pytest.raises(ValueError, match=r"bad\.json is no JSON behind byte (9|11)"):
        JsonRows(write(tmp_path / "bad.json", text))


def test_other_json_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds a str where a record should be"):
        JsonRows(write(tmp_path / "a.json", '["a", "b"]'))
    with pytest.raises(FileNotFoundError, match=r"no file .*gone\.json"):
        JsonRows(tmp_path / "gone.json")
    assert len(JsonRows(write(tmp_path / "empty.json", "[]"))) == 0


def test_splits_are_joined_in_a_drawn_order(tmp_path):
    splits = {"a": Dataset.from_list([{"n": i} for i in range(5)]), "b": [{"n": i} for i in range(5, 8)]}
    one, same, other = (TableRows("docvqa", splits, seed) for seed in (1, 1, 2))
    order = [one[i]["n"] for i in range(len(one))]
    assert sorted(order) == list(range(8)) != order
    assert order == [same[i]["n"] for i in range(8)] != [other[i]["n"] for i in range(8)]
    keys = {one.key(i): one[i]["n"] for i in range(8)}
    assert keys == {**{f"docvqa/a/{i}": i for i in range(5)}, **{f"docvqa/b/{i}": i + 5 for i in range(3)}}
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_the_fingerprint_follows_the_file(tmp_path):
    path = write(tmp_path / "a.json", '[{"a": 1}]')
    before = TableRows("llava", {"train": JsonRows(path)}, 0).fingerprint
    write(path, '[{"a": 1}, {"a": 2}]')
    assert TableRows("llava", {"train": JsonRows(path)}, 0).fingerprint != before


def test_the_start_of_a_stream_is_fetched():
    stream = Dataset.from_list([{"n": i} for i in range(9)]).to_iterable_dataset()
    assert [row["n"] for row in fetch(stream, 4)] == [0, 1, 2, 3]
    assert len(fetch(stream, 20)) == 9
