"""`data build`, `report`, `verify`, and training from the folder they leave."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import fresh_backbone, save_backbone
from hub_rows import llava
from toy_fit import Killed, Toy, fit

from data_modules import MixtureDataModule, world_rows
from data_modules.manifest import MANIFEST, REPORT, differences, open_mixture
from data_modules.synthetic.world import generate
from tiger.cli import main

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CONFIG = ["data", "build", "--config", str(CONFIGS / "data" / "kd_mixture_synthetic.yaml")]
COUNTS = {"llava": 9, "textvqa": 6, "scienceqa": 4, "docvqa": 3, "tallyqa": 3, "chartqa": 2}


def build(folder, *words):
    small = [f"--{name}.count={count}" for name, count in COUNTS.items()]
    return main([*CONFIG, *small, *words, "--output", str(folder)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    path = tmp_path_factory.mktemp("verifier")
    save_backbone(fresh_backbone(), path)
    return str(path)


@pytest.fixture
def module(folder, verifier, tmp_path):
    def make(folder=folder, **options):
        defaults = {"num_validation": 4, "num_test": 3, "batch_size": 3, "responses": "dataset"}
        return MixtureDataModule(
            str(folder), **{"verifier": verifier, "cache_dir": str(tmp_path / "cache"), "max_new_tokens": 4,
                            **defaults, **options}
        )  # fmt: skip

    return make


def test_a_folder_holds_manifest_and_report(folder, capsys):
    content = json.loads((folder / MANIFEST).read_text())
    assert Counter(key.split("/")[1] for key in content["ids"]) == {
        "scene": 9, "sign": 6, "science": 4, "document": 3, "count": 3, "chart": 2
    }  # fmt: skip
    assert [report["source"] for report in content["reports"]] == list(COUNTS)
    assert len(content["entries"]) == len(set(content["ids"])) == 27
    text = main(["data", "report", str(folder)])
    assert (folder / REPORT).read_text() == text + "\n"
    assert text in capsys.readouterr().out
    assert f"27 records, manifest {content['manifest']}" in text
    assert "| tallyqa   |         3 |" in text
    assert "100.0 %" in text
    assert "GPL-3.0" in text


def test_no_picture_is_rendered_while_building(tmp_path, monkeypatch):
    def outlined(seed, kind, is_drawn=True):
        assert not is_drawn
        return generate(seed, kind, is_drawn)

    monkeypatch.setattr(world_rows, "generate", outlined)
    assert len(build(tmp_path)) == sum(COUNTS.values())


def test_a_rebuilt_mixture_is_the_same(folder, tmp_path, capsys):
    assert main(["data", "verify", str(folder / MANIFEST)]) is None
    assert "rebuilt, the same" in capsys.readouterr().out
    build(tmp_path / "again")
    assert (tmp_path / "again" / MANIFEST).read_text() == (folder / MANIFEST).read_text()
    build(tmp_path / "other", "--seed=1")
    assert (tmp_path / "other" / MANIFEST).read_text() != (folder / MANIFEST).read_text()


def test_verify_says_what_differs(tmp_path, capsys):
    path = llava(tmp_path)
    words = ["data", "build", "--llava.path", path, "--llava.image_root", str(tmp_path)]
    words += ["--use_guard=false", "--output"]
    main([*words, str(tmp_path / "built"), "--llava.count=9"])
    (tmp_path / "coco/train2017/000000000001.jpg").unlink()
    (tmp_path / "coco/train2017/000000000002.jpg").write_bytes(
        (tmp_path / "coco/train2017/000000000003.jpg").read_bytes()
    )
    with pytest.raises(SystemExit) as stop:
        main(["data", "verify", str(tmp_path / "built")])
    assert stop.value.code == 1
    said = capsys.readouterr().out
    assert "llava: kept 6, rebuilt 5" in said
    assert "1 gone: llava/train/1" in said
    assert "1 changed: llava/train/2" in said


def test_a_missing_or_old_manifest_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no .*manifest\.json.*data build"):
        main(["data", "report", str(tmp_path / "manifest.json")])
    (tmp_path / MANIFEST).write_text('{"format": 0}')
    with pytest.raises(ValueError, match="has the format 0, this version reads 1"):
        main(["data", "verify", str(tmp_path)])


def test_a_damaged_manifest_is_named(folder, tmp_path):
    whole = (folder / MANIFEST).read_bytes()
    for content in (whole[:-9], b"[]", b'{"format": 1}'):
        (tmp_path / MANIFEST).write_bytes(content)
        with pytest.raises(ValueError, match=r"manifest\.json is damaged: .*Build the mixture again"):
            main(["data", "report", str(tmp_path)])


def change(content, what):
    entry = content["entries"][0]
    if what == "id":
        content["ids"][0] += "0"
    elif what == "missing":
        content["ids"].pop()
    elif what == "content":
        entry[4] = "0" * len(entry[4])
    elif what == "picture":
        entry[3] = "0" * len(entry[3])
    elif what == "length":
        entry[2] += 1
    elif what == "number":
        entry[1] += 1
    else:
        content["reports"][0]["kept"] += 1


@pytest.fixture
def changed(folder, tmp_path):
    def make(what):
        content = json.loads((folder / MANIFEST).read_text())
        change(content, what)
        (tmp_path / MANIFEST).write_text(json.dumps(content))
        return tmp_path

    return make


@pytest.mark.parametrize("what", ["id", "missing", "content"])
def test_records_that_are_not_those_of_the_hash_are_refused(changed, what):
    path = changed(what)
    for use in (open_mixture, differences):
        with pytest.raises(ValueError, match=r"not those of its hash .*Build the mixture again"):
            use(path)


def test_rows_that_are_not_those_of_the_hash_are_refused(changed):
    with pytest.raises(ValueError, match=r"have the hash .*, not .*Build the mixture again"):
        open_mixture(changed("number"))


@pytest.mark.parametrize(
    ("what", "said"),
    [("picture", "1 changed: "), ("length", "1 changed: "), ("number", "at other places"),
     ("report", "llava: kept 10, rebuilt 9")],
)  # fmt: skip
def test_verify_compares_every_entry(changed, what, said):
    assert said in "\n".join(differences(changed(what)))


def test_splits_share_no_picture(module):
    data = module()
    data.setup("fit")
    data.setup("test")
    assert {split: len(mixture) for split, mixture in data.mixtures.items()} == {
        "train": 20, "validation": 4, "test": 3
    }  # fmt: skip
    shown = {split: {e.picture for e in mixture.index.entries} for split, mixture in data.mixtures.items()}
    assert shown["train"].isdisjoint(shown["validation"] | shown["test"])
    other = module(seed=7)
    other.setup("fit")
    assert other.mixtures["validation"].manifest == data.mixtures["validation"].manifest
    assert [len(batch) for batch in data.train_dataloader()] == [3] * 6 + [2]
    assert "train 20, validation 4, test 3" in data.report()


def held(data):
    data.setup("fit")
    data.setup("test")
    return {split: {e.picture for e in mixture.index.entries} for split, mixture in data.mixtures.items()}


def test_what_is_held_out_does_not_depend_on_what_is_too_long(module):
    all_prompts, short_prompts = held(module()), held(module(max_length=92))
    assert sum(map(len, short_prompts.values())) < sum(map(len, all_prompts.values()))
    assert all(short_prompts[split] <= pictures for split, pictures in all_prompts.items())


def test_a_picture_at_the_border_is_in_one_split(module):
    data = module()
    entries = data.built.index.entries
    first, *others = sorted({entry.picture for entry in entries})
    same = set(others[:5])  # five records that show one picture
    data.built.index.entries = [e._replace(picture=others[0]) if e.picture in same else e for e in entries]
    data.whole = data.built
    split = {name: {entries[i].picture for i in indices} for name, indices in data._indices.items()}
    assert split["validation"] == {first, *same}
    assert split["test"] == set(others[5:8])
    assert split["train"] == set(others[8:])


def test_the_verifier_answers_the_training_prompts(module):
    data = module(responses="verifier")
    data.setup("fit")
    assert len(data.answers) == 20
    assert "verifier answers: 20" in data.report()
    example = data.examples["train"][0]
    assert example.response.tolist() == data.answers(example.prompt.id)


def test_a_killed_fit_sees_the_remaining_batches(module, tmp_path):
    whole = fit(module(), Toy(), tmp_path / "whole")
    with pytest.raises(Killed):
        fit(module(), Toy(kill_at=10), tmp_path / "killed")
    resumed = fit(module(), Toy(), tmp_path / "killed", tmp_path / "killed" / "last.ckpt")
    assert resumed.seen == whole.seen[10:]
    assert torch.equal(resumed.weight, whole.weight)


def test_long_prompts_are_dropped_and_counted(module):
    data = module(max_length=92)
    data.setup("fit")
    assert "prompt_too_long" in data.report()
    assert len(data.whole) < 27
    with pytest.raises(ValueError, match=r"split is empty: all records were dropped by"):
        module(max_length=20).setup("fit")


def test_options_that_cannot_work_are_refused(module, tmp_path):
    with pytest.raises(ValueError, match="num_validation >= 0 and num_test >= 0, got -1"):
        module(num_validation=-1)
    with pytest.raises(ValueError, match=r"27 records; num_validation 30 .*leave none for training"):
        module(num_validation=30).setup("fit")
    build(tmp_path / "without", "--require_answers=false")
    with pytest.raises(ValueError, match=r"require_answers false.*Set responses to verifier"):
        module(tmp_path / "without").setup("fit")
    module(tmp_path / "without", responses="verifier").setup("fit")


def test_fit_from_a_folder(folder, verifier, tmp_path):
    save_backbone(fresh_backbone("drafter", 1, 2), tmp_path / "drafter")
    cli = main(["fit", "--config", str(CONFIGS / "data/mixture_folder.yaml"),
                "--config", str(CONFIGS / "stage/kd_tiny.yaml"),
                f"--data.init_args.folder={folder}", f"--data.init_args.cache_dir={tmp_path}",
                f"--model.init_args.verifier={verifier}", f"--model.init_args.drafter={tmp_path / 'drafter'}",
                "--data.init_args.num_validation=2", "--data.init_args.num_test=0",
                "--data.init_args.batch_size=2", "--data.init_args.max_new_tokens=6",
                "--model.init_args.max_new_tokens=6",
                "--trainer.fast_dev_run=true", "--trainer.accelerator=cpu",
                "--trainer.enable_progress_bar=false"])  # fmt: skip
    assert cli.trainer.global_step == 1
    assert isinstance(cli.datamodule, MixtureDataModule)
