import json

import pytest
from datasets import Dataset, Features, Image, List, Value
from hub_repository import write_repository
from PIL import Image as PILImage

from data_modules.hub import open_rows, require_columns

FEATURES = Features({"text": Value("string"), "image": Image(), "images": List(Image())})


def rows():
    picture = PILImage.new("P", (3, 2))
    return [
        {"text": "a", "image": picture, "images": [picture, picture]},
        {"text": "b", "image": None, "images": []},
    ]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    write_repository(folder, {"test": rows()}, FEATURES, config="plain")
    return folder


def check(opened):
    first, second = list(opened)
    assert first["text"] == "a"
    assert set(first["image"]) == {"bytes", "path"}
    assert isinstance(first["image"]["bytes"], bytes)
    assert [type(image["bytes"]) for image in first["images"]] == [bytes, bytes]
    assert (second["image"], second["images"]) == (None, [])


@pytest.mark.parametrize("streaming", [False, True])
def test_images_stay_encoded(repository, streaming):
    check(open_rows([str(repository)], None, "test", "plain", streaming))
    check(open_rows([], repository, "test", "plain", streaming))


@pytest.mark.parametrize("streaming", [False, True])
def test_local_copies_of_every_kind(tmp_path, streaming):
    table = Dataset.from_list(rows(), FEATURES)
    table.to_parquet(tmp_path / "rows.parquet")
    table.save_to_disk(tmp_path / "saved")
    (tmp_path / "splits").mkdir()
    table.save_to_disk(tmp_path / "splits" / "test")
    for name in ("rows.parquet", "saved", "splits"):
        check(open_rows(["nobody/none"], tmp_path / name, "test", streaming=streaming))
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "rows.json").write_text(json.dumps([{"text": "a"}, {"text": "b"}]))
    for name in ("rows.jsonl", "rows.json"):
        opened = open_rows([], tmp_path / name, "test", streaming=streaming)
        assert [row["text"] for row in opened] == ["a", "b"]


def test_folders_of_one_name_are_not_confused(tmp_path):
    for number in range(2):
        content = {"test": [{"text": f"row {number}"}]}
        write_repository(tmp_path / str(number) / "same", content, Features({"text": Value("string")}))
    for number in range(2):
        opened = open_rows([], tmp_path / str(number) / "same", "test")
        assert opened[0] == {"text": f"row {number}"}
    changed = {"test": [{"text": "a"}, {"text": "b"}]}
    folder = tmp_path / "0" / "same"
    (folder / "README.md").unlink()
    write_repository(folder, changed, Features({"text": Value("string")}))
    assert len(open_rows([str(folder)], None, "test")) == 2


def test_the_first_id_that_works_is_taken(repository):
    check(open_rows(["nobody/moved", str(repository)], None, "test", "plain"))


def test_unreachable_ids_are_all_named():
    with pytest.raises(FileNotFoundError, match=r"nobody/none .*; nobody/old .*path of a local copy"):
        open_rows(["nobody/none", "nobody/old"], None, "test")
    with pytest.raises(FileNotFoundError, match="there are none"):
        open_rows([], None, "test")


def test_missing_paths_and_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no data set at .*nowhere"):
        open_rows([], tmp_path / "nowhere", "test")
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(ValueError, match=r"'rows.csv' is no .parquet"):
        open_rows([], tmp_path / "rows.csv", "test")


def test_scripts_are_refused(tmp_path):
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text("import datasets\n")
    with pytest.raises(ValueError, match=r"made by a script.*Parquet copy"):
        open_rows([str(folder)], None, "test")


def test_unknown_splits_and_configurations(repository):
    with pytest.raises(ValueError, match=r"split 'dev'.*\['test'\]"):
        open_rows([str(repository)], None, "dev", "plain")
    with pytest.raises(ValueError, match=r"configuration 'fancy'.*plain"):
        open_rows([str(repository)], None, "test", "fancy")


def test_columns():
    require_columns(["a", "b"], ["b"], "some set")
    with pytest.raises(ValueError, match=r"some set lacks the columns c: expected b, c, found a, b"):
        require_columns(["a", "b"], ["b", "c"], "some set")
