"""What is taken of a set and what is left out."""

import io
import os
from pathlib import Path

import pytest
from fixtures import DOCVQA, MMBENCH, POPE, SCIENCEQA, TEXTVQA, picture, repository
from PIL import Image

from data_modules.evaluation import SETS, SetOptions, load_set
from data_modules.synthetic.world import generate
from data_modules.world_rows import world_version


def pope(folder, count=12):
    row = {"question": "Is there a dog?", "answer": "yes", "category": "random", "image": picture()}
    return repository(folder, POPE, [row] * count)


def ids(tasks):
    return [reference.id for reference in tasks.references]


def test_a_smaller_subset_is_the_beginning_of_a_larger_one(tmp_path):
    options = pope(tmp_path)
    whole = ids(load_set("pope", options=options))
    assert sorted(whole, key=int) == [str(number) for number in range(12)]
    assert ids(load_set("pope", 5, options=options)) == whole[:5]
    assert ids(load_set("pope", 5, seed=1, options=options)) != whole[:5]
    assert len(load_set("pope", 99, options=options)) == 12


def test_copies_of_a_question_stay_together(tmp_path):
    rows = [
        {
            "index": index,
            "question": "?",
            "hint": "nan",
            "answer": "A",
            "A": "x",
            "B": "y",
            "image": picture(),
        }
        for index in (1_000_002, 1, 2, 2_000_001, 1_000_001)
    ]
    options = repository(tmp_path, MMBENCH, rows, "dev", "en")
    tasks = load_set("mmbench", 1, options=options)
    assert ids(tasks) in (["1", "1000001", "2000001"], ["2", "1000002"])
    assert {reference.group for reference in tasks.references} == {ids(tasks)[0]}
    assert sorted(ids(load_set("mmbench_vanilla", options=options))) == ["1", "2"]
    whole = load_set("mmbench", options=options)
    whole.drop({"mmbench/1000002"}, "prompt_too_long")
    assert (ids(whole), whole.skipped) == (["1", "1000001", "2000001"], {"prompt_too_long": ["2", "1000002"]})
    assert whole.prompt(1).id == "mmbench/1000001"


def test_indices_may_be_text(tmp_path):
    rows = [{"index": str(i), "question": "?", "answer": "A", "A": "x", "B": "y"} for i in (7, 1_000_007)]
    schema = MMBENCH.copy()
    schema["index"] = MMBENCH["hint"]
    options = repository(tmp_path, schema, [row | {"image": picture()} for row in rows], "dev", "en")
    assert ids(load_set("mmbench", options=options)) == ["7", "1000007"]


def test_bad_rows_are_counted_and_named(tmp_path):
    good = {"questionId": "1", "question": "Who?", "answers": ["Ann"], "image": picture(1, 1)}
    content = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(content, "JPEG")
    broken = {"bytes": content.getvalue()[:600], "path": None}
    rows = [
        good,
        good | {"questionId": "2", "answers": None},
        good | {"questionId": "3", "answers": [""] * 10},
        good | {"questionId": "4", "image": None},
        good | {"questionId": "5", "image": broken},
        good | {"questionId": "6", "question": "Wer? 誰?"},
    ]
    tasks = load_set("docvqa", options=repository(tmp_path, DOCVQA, rows, "validation", "DocVQA"))
    assert sorted(ids(tasks)) == ["1", "6"]
    skipped = {reason: sorted(names) for reason, names in tasks.skipped.items()}
    assert skipped == {"no_answer": ["2", "3"], "no_image": ["4"], "unreadable_image": ["5"]}


def test_questions_without_picture_and_answers_that_are_no_choice(tmp_path):
    row = {
        "question": "?",
        "choices": ["a", "b"],
        "answer": 0,
        "hint": "",
        "subject": "s",
        "image": picture(),
    }
    rows = [row | {"image": None}, row, row | {"answer": 2}, row | {"answer": None}]
    tasks = load_set("scienceqa", options=repository(tmp_path, SCIENCEQA, rows, config="ScienceQA-IMG"))
    assert ids(tasks) == ["1"]
    assert {reason: sorted(names) for reason, names in tasks.skipped.items()} == {
        "no_image": ["0"],
        "malformed": ["2", "3"],
    }


def test_a_split_without_answers_is_refused(tmp_path):
    rows = [{"question_id": i, "question": "?", "answers": [], "image": picture()} for i in range(3)]
    options = repository(tmp_path, TEXTVQA, rows, "test")
    with pytest.raises(ValueError, match=r"textvqa has no sample .*3 were read .*no_answer \(3\)"):
        load_set("textvqa", options=SetOptions(options.hub_ids, split="test"))


def test_missing_columns_are_named(tmp_path):
    options = repository(tmp_path, DOCVQA, [{"questionId": "1"}])
    with pytest.raises(ValueError, match=r"pope .*lacks the columns answer, category: expected question"):
        load_set("pope", options=options)


@pytest.mark.parametrize("name", [name for name in SETS if not name.startswith("synthetic")])
def test_every_set_says_what_cannot_be_reached(name):
    ids = SETS[name].hub_ids
    match = (
        f"None of the hub ids .*{'.*'.join(ids)}.*path of a local copy" if ids else "nlvr2/data/test1.json"
    )
    with pytest.raises(FileNotFoundError, match=match):
        load_set(name)


def test_settings_of_a_set(tmp_path):
    with pytest.raises(ValueError, match="Unknown data set 'imagenet'; choose one of synthetic"):
        load_set("imagenet")
    with pytest.raises(ValueError, match="Unknown style 'fast' of pope; choose one of score, speed"):
        load_set("pope@fast", options=pope(tmp_path))
    with pytest.raises(ValueError, match="num_prompts is 0; take one sample of pope"):
        load_set("pope", 0, options=pope(tmp_path))
    with pytest.raises(ValueError, match="num_prompts is None; synthetic has 1 to"):
        load_set("synthetic")


def test_the_data_stand_in_the_settings(tmp_path):
    def written(name, **changes):
        row = {"question": "Is there a dog?", "answer": "yes", "category": "random", "image": picture()}
        return Path(repository(tmp_path / name, POPE, [row | changes] * 3).hub_ids[1])

    def settings(path, **changes):
        return load_set("pope", options=SetOptions(path=path, **changes)).settings()

    path = written("a")
    first = settings(path)
    assert first == settings(path) != settings(path, media_root=tmp_path)
    others = [settings(written(name, **{name: "no"})) for name in ("question", "answer")]
    assert len({first["references"], *(other["references"] for other in others)}) == 3
    tasks = load_set("pope", options=SetOptions(path=path))
    tasks.drop({tasks.prompt_ids[0]}, "prompt_too_long")
    assert tasks.settings() == first
    file = next(file for file in path.rglob("*") if file.is_file())
    os.utime(file, ns=(0, 0))
    touched = settings(path)
    assert touched["references"] == first["references"]
    assert touched["files"] != first["files"]
    table = next(path.rglob("*.parquet"))
    assert [size for _, size, _ in settings(table)["files"]] == [table.stat().st_size]
    assert load_set("synthetic", 1).settings() == {"world": world_version()}


def test_the_synthetic_world_is_a_set():
    tasks = load_set("synthetic", 6)
    assert {reference.group for reference in tasks.references} == {
        *("scene", "count", "sign", "document", "chart", "science")
    }
    for index, reference in enumerate(tasks.references):
        kind, seed, turn = reference.id.split("/")
        expected = generate(int(seed), kind).turns[int(turn)]
        assert (reference.answers, tasks.prompt(index).text) == ((expected.answer,), expected.question)
        assert tasks.metrics()[0].score(expected.answer.lower(), reference) == 100
    second = tasks.prompt(1)
    tasks.drop({tasks.prompt_ids[0]}, "prompt_too_long")
    assert (len(tasks), tasks.prompt(0).id) == (5, second.id)
    assert tasks.prompt(0).images[0].tobytes() == second.images[0].tobytes()
    long = load_set("synthetic_long", 6)
    assert ids(load_set("synthetic@speed", 6)) == ids(long)
    assert long.prompt_ids[0].startswith("synthetic_long/")
    assert load_set("synthetic@speed", 6).label == "synthetic@speed"
    assert load_set("synthetic_validation", 2).prompt(1).id.startswith("synthetic_validation/count/")


def test_synthetic_sets_of_one_kind_of_two_pictures_and_of_a_video():
    sign = load_set("synthetic_sign", 2)
    assert {reference.group for reference in sign.references} == {"sign"}
    assert sign.prompt_ids[0].startswith("synthetic_sign/sign/")
    both, clip = load_set("synthetic_images", 1).prompt(0), load_set("synthetic_video", 1).prompt(0)
    plain = load_set("synthetic", 1).prompt(0)
    assert both.text == clip.text == plain.text
    assert both.images[0].tobytes() == plain.images[0].tobytes() != both.images[1].tobytes()
    assert not clip.images
    assert clip.videos[0].frames.shape == (4, 128, 128, 3)
