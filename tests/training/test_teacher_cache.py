"""KD from cached lessons equals live KD; killed runs resume; a cache that does not fit is refused."""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import save_backbone, save_pair, tiny_backbone
from safetensors import safe_open

from tiger.cli import main
from tiger.training.losses import DIVERGENCES
from tiger.training.teacher_cache import (
    SETTINGS,
    TeacherCache,
    check_cache,
    coarse,
    read_settings,
    shard_path,
)

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ["--config", str(ROOT / "configs/experiment/tiny_kd.yaml")]
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.callbacks=[]", "--trainer.logger=false"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"))


def words(pair, folder, *extra):
    dtype = "--model.init_args.verifier_dtype=float32"
    return [*CONFIG, *pair, *QUIET, dtype, f"--model.init_args.teacher_cache={folder}", *extra]


def fill(pair, folder, *extra):
    return main(["data", "cache-teacher", *words(pair, folder, "--shard_size=5", *extra)])


def fit(pair, folder, *extra):
    """A KD run of a few steps; returns the logged losses of its last step."""
    cli = main(
        ["fit", *words(pair, folder, "--trainer.max_steps=2", "--trainer.limit_val_batches=0", *extra)]
    )
    return {name: value.item() for name, value in cli.trainer.callback_metrics.items()}


@pytest.fixture(scope="module")
def cache(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "cache"
    size = tiny_backbone("verifier", 0, 1).vocab_size
    assert fill(pair, folder, f"--top_k={size - 1}") == folder
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", list(DIVERGENCES))
def test_one_token_for_all_others_loses_nothing_where_they_are_one(name):
    torch.manual_seed(0)
    p, q = torch.randn(2, 5, 7)
    ids = p.topk(6).indices
    expected = DIVERGENCES[name](p, q)
    torch.testing.assert_close(DIVERGENCES[name](coarse(p, ids), coarse(q, ids)), expected)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "js", "tv"])
def test_coarser_divergences_are_never_larger(name):
    torch.manual_seed(0)
    p, q = 2 * torch.randn(2, 50, 20)
    found = []
    for k in (1, 4, 16, 19):
        ids = p.topk(k).indices
        found.append(DIVERGENCES[name](coarse(p, ids), coarse(q, ids)).mean())
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_gradient_of_the_rest_is_finite_where_nothing_is_left():
    logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    coarse(logits, torch.tensor([[0]])).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["kl", "tv"])
def test_kd_from_the_cache_equals_live_kd(pair, cache, loss):
    option = f"--model.init_args.loss={loss}"
    live = fit(pair, "null", option)
    cached = fit(pair, cache, option)
    assert live.keys() == cached.keys() >= {"loss/kd", "loss/guidance", "loss/total"}
    for name, value in live.items():
        assert cached[name] == pytest.approx(value, abs=2e-3, rel=1e-3), name


def test_the_size_is_estimated_first(pair, tmp_path, capsys):
    fill(pair, tmp_path / "cache", "--top_k=16")
    said = capsys.readouterr().out
    estimate = float(re.search(r"about ([\d.]+) MB", said)[1]) * 1e6
    written = sum(file.stat().st_size for file in (tmp_path / "cache").glob("*.safetensors"))
    assert "12 examples in 3 shards" in said
    assert written == pytest.approx(estimate, rel=0.2)


def test_a_disk_that_is_too_small_is_named(pair, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    with monkeypatch.context() as patch:
        patch.setattr("tiger.training.cache_teacher.shutil.disk_usage", lambda path: usage)
        with pytest.raises(ValueError, match=r"the disk has 0\.001 MB"):
            fill(pair, tmp_path / "cache")
    fill(pair, tmp_path / "cache", "--top_k=4")  # what was refused has left nothing in the way


def test_a_killed_run_resumes(pair, tmp_path):
    program = (
        "import os, signal, sys\n"
        "from tiger.training import cache_teacher\n"
        "from tiger.cli import main\n"
        "write = cache_teacher.write_shard\n"
        "def kill(folder, index, *rest):\n"
        "    if index == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write(folder, index, *rest)\n"
        "cache_teacher.write_shard = kill\n"
        "main(sys.argv[1:])\n"
    )
    folder = tmp_path / "cache"
    command = ["data", "cache-teacher", *words(pair, folder, "--shard_size=5", "--top_k=16")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = [sys.executable, "-c", program, *command]
    done = subprocess.run(killed, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    with pytest.raises(FileNotFoundError, match="lacks 1 of 3 shards"):
        TeacherCache(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    main(command)
    assert len(before) == 2
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    fill(pair, tmp_path / "whole", "--top_k=16")
    for index in range(3):
        with (
            safe_open(shard_path(folder, index), "pt") as resumed,
            safe_open(shard_path(tmp_path / "whole", index), "pt") as whole,
        ):
            assert set(resumed.keys()) == set(whole.keys())
            for name in whole.keys():  # noqa: SIM118
                assert torch.equal(resumed.get_tensor(name), whole.get_tensor(name))


def test_damaged_shards_are_made_again(pair, cache, tmp_path):
    folder = shutil.copytree(cache, tmp_path / "cache")
    whole = shard_path(folder, 1).read_bytes()
    for content in (whole[:-7], b"", b"no tensors"):
        shard_path(folder, 1).write_bytes(content)
        with pytest.raises(
            FileNotFoundError, match=r"lacks 1 of 3 shards, .*shard-00001.* not there or damaged"
        ):
            TeacherCache(folder)
    fill(pair, folder, f"--top_k={read_settings(folder).top_k}")
    assert shard_path(folder, 1).read_bytes() == whole
    for content in ("{", "[]", '{"guidance": null}'):
        (folder / SETTINGS).write_text(content)
        with pytest.raises(ValueError, match=rf"{SETTINGS} is damaged: .*make the cache again"):
            TeacherCache(folder)


def test_a_cache_that_does_not_fit_is_refused(pair, cache, tmp_path):
    save_backbone(tiny_backbone("verifier", 5, 1), tmp_path / "other")  # the same shapes
    with pytest.raises(ValueError, match="another verifier"):
        fit(pair, cache, f"--model.init_args.verifier={tmp_path / 'other'}")
    for option, reason in (
        ("--data.init_args.mixture=kd", "other training data"),
        ("--data.init_args.seed=3", "other training data"),
        ("--model.init_args.temperature=2.0", "another temperature"),
        ("--model.init_args.guidance_layers=2", "other layers"),
    ):
        with pytest.raises(ValueError, match=reason):
            fit(pair, cache, option)
    with pytest.raises(ValueError, match="another number of tokens"):
        fill(pair, cache, "--top_k=3")
    with pytest.raises(FileNotFoundError, match="There is no teacher cache"):
        fit(pair, tmp_path / "nowhere")


def test_attention_is_kept_only_for_guidance(pair, tmp_path):
    off = "--model.init_args.guidance_weight=0.0"
    fill(pair, tmp_path / "cache", "--top_k=16", off)
    cache = TeacherCache(tmp_path / "cache")
    assert cache(next(iter(cache.places)), torch.device("cpu"))["attention"].numel() == 0
    fit(pair, tmp_path / "cache", off)
    with pytest.raises(ValueError, match="was not kept"):
        fit(pair, tmp_path / "cache")
    kept = replace(cache.settings, guidance=(4, 2.0))
    check_cache(kept, cache.settings, tmp_path)  # a run without guidance may use it


def test_bad_options_are_refused(pair, tmp_path):
    with pytest.raises(ValueError, match="top_k is 0"):
        fill(pair, tmp_path / "cache", "--top_k=0")
    with pytest.raises(ValueError, match="names its cache"):
        fill(pair, "null")
    align = ["--config", str(ROOT / "configs/experiment/tiny_align.yaml"), *pair, *QUIET]
    with pytest.raises(ValueError, match="takes the options of a KD run"):
        main(["data", "cache-teacher", *align])
    with pytest.raises(SystemExit) as stop:
        main(["data", "cache-techer"])
    assert stop.value.code == 2


def test_settings_survive_the_disk(cache):
    settings = read_settings(cache)
    assert settings.guidance == (4, 2.0)
    assert TeacherCache(cache).settings == settings
    with pytest.raises(ValueError, match="no lesson for prompt 'x'"):
        TeacherCache(cache)("x", torch.device("cpu"))
