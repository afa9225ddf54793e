"""Draft heads train from lessons on disk as they do live; a cache that does not fit is refused."""

import re
from pathlib import Path

import pytest
import torch
from helpers import prompts, save_pair, tiny_backbone

from tiger.cli import main
from tiger.training.head_lessons import keep_lesson, read_head_lessons, restore_lesson
from tiger.training.teacher_cache import read_settings, shard_path

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"), layers=3)


def words(pair, folder, *extra):
    options = [option for option in pair if "init_args.drafter=" not in option]  # a head has none
    options += ["--model.init_args.verifier_dtype=float32", f"--model.init_args.teacher_cache={folder}"]
    options += ["--trainer.enable_progress_bar=false", "--trainer.callbacks=[]", "--trainer.logger=false"]
    return ["--config", str(ROOT / "configs/experiment/tiny_eagle3.yaml"), *options, *extra]


def fill(pair, folder, *extra):
    return main(["data", "cache-teacher", *words(pair, folder, "--shard_size=5", *extra)])


def fit(pair, folder, *extra):
    """A run of a few steps; returns what its last step logged, and the head."""
    limits = ("--trainer.max_steps=3", "--trainer.limit_val_batches=0", "--model.init_args.remember=false")
    cli = main(["fit", *words(pair, folder, *limits, *extra)])
    return {
        name: value.item() for name, value in cli.trainer.callback_metrics.items()
    }, cli.model.state_dict()


@pytest.fixture(scope="module")
def cache(pair, tmp_path_factory):
    return fill(pair, tmp_path_factory.mktemp("teacher") / "cache")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("layers", "guided"), [((), 0), ((1, 2), 2)])
def test_a_kept_lesson_is_the_very_lesson(layers, guided):
    verifier, batch = tiny_backbone(), prompts(3)  # one image, two images, none
    answers = [torch.arange(5, 5 + size) for size in (4, 2, 3)]
    for lesson in read_head_lessons(verifier, layers, batch, answers, guided):
        again = restore_lesson(keep_lesson(lesson), verifier)
        for name in ("features", "tokens", "embeddings", "visual"):
            assert torch.equal(getattr(again.row, name), getattr(lesson.row, name)), name
        assert torch.equal(again.hidden, lesson.hidden)
        assert again.start == lesson.start
        assert (again.attention is None) == (lesson.attention is None) == (not guided)
        if guided:
            assert torch.equal(again.attention, lesson.attention)


def test_training_from_the_cache_equals_live_training(pair, cache):
    """To 1e-4 of the loss: the passes that filled the cache had other rows beside each text."""
    (live, head), (cached, again) = fit(pair, "null"), fit(pair, cache)
    assert live.keys() == cached.keys() >= {"loss/soft_ce", "loss/total"}
    assert cached == pytest.approx(live, rel=1e-4)
    assert all((head[name] - again[name]).abs().max() < 1e-3 for name in head)


def test_missing_shards_are_made_and_the_size_is_estimated_first(pair, cache, tmp_path, capsys):
    fill(pair, tmp_path / "cache")
    said = capsys.readouterr().out
    estimate = float(re.search(r"about ([\d.]+) MB \(hidden states, those of layers \[2\] too\)", said)[1])
    written = sorted((tmp_path / "cache").glob("*.safetensors"))
    assert sum(file.stat().st_size for file in written) == pytest.approx(estimate * 1e6, rel=0.2)
    assert len(written) == 3
    assert read_settings(tmp_path / "cache").layers == (2,)
    shard_path(tmp_path / "cache", 1).unlink()
    with pytest.raises(FileNotFoundError, match="lacks 1 of 3 shards"):
        fit(pair, tmp_path / "cache")
    times = [written[0].stat().st_mtime_ns, written[2].stat().st_mtime_ns]
    fill(pair, tmp_path / "cache")
    assert "1 shards to make" in capsys.readouterr().out
    assert times == [written[0].stat().st_mtime_ns, written[2].stat().st_mtime_ns]
    assert written[1].read_bytes() == shard_path(cache, 1).read_bytes()


def test_a_cache_that_does_not_fit_is_refused(pair, cache):
    for option, reason in (
        ("--model.init_args.head={'layers': [1]}", "for a draft head that reads other layers"),
        ("--data.init_args.seed=3", "other training data"),
    ):
        with pytest.raises(ValueError, match=reason):
            fit(pair, cache, option)
    kd = ["--config", str(ROOT / "configs/experiment/tiny_kd.yaml"), *pair, *words(pair, cache)[2:]]
    with pytest.raises(ValueError, match="it was made for another task"):
        main(["fit", *kd, "--trainer.max_steps=1"])
