"""A killed run, resumed from its last checkpoint, ends with the very weights of an uninterrupted one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from helpers import save_pair

from tiger.cli import main
from tiger.drafting.lora import merged_weights
from tiger.drafting.saving import load_drafter

ROOT = Path(__file__).resolve().parents[2]
STEPS, KILLED_AT, SAVED_AT = 8, 5, 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"))


def config(folder, name, experiment, *extra):
    """A short run of an experiment that saves every second step and validates in between."""
    checkpoint = {"every_n_train_steps": 2, "save_last": True}
    path = folder / f"{name}.yaml"
    content = {
        "extends": str(ROOT / "configs/experiment" / experiment),
        "trainer": {
            "max_steps": STEPS,
            "max_epochs": 2,
            "val_check_interval": 3,
            "enable_progress_bar": False,
            "logger": {"init_args": {"save_dir": str(folder), "name": name}},
            "callbacks+": [{"class_path": "ModelCheckpoint", "init_args": checkpoint}, *extra],
        },
    }
    path.write_text(yaml.safe_dump(content))
    return ["fit", "--config", str(path)]


def killed(words):
    """Runs the command line in its own process, which must end by SIGKILL."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/integration")])}
    done = subprocess.run(
        [sys.executable, "-m", "tiger", *words], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


@pytest.mark.parametrize("experiment", ["tiny_kd.yaml", "tiny_align.yaml"])
def test_killed_run_resumes_bit_equal(experiment, pair, tmp_path):
    kill = {"class_path": "killer.KillAt", "init_args": {"step": KILLED_AT}}
    killed([*config(tmp_path, "interrupted", experiment, kill), *pair])
    last = torch.load(tmp_path / "interrupted/checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == SAVED_AT
    assert not any(name.startswith("verifier.") for name in last["state_dict"])
    whole = main([*config(tmp_path, "whole", experiment), *pair])
    resumed = main([*config(tmp_path, "interrupted", experiment), *pair, "--ckpt_path=last"])
    assert whole.trainer.global_step == resumed.trainer.global_step == STEPS
    expected, found = whole.model.state_dict(), resumed.model.state_dict()
    assert expected.keys() == found.keys()
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    assert not different
    trained = [name for name, value in expected.items() if not torch.equal(value, last["state_dict"][name])]
    assert trained, "the steps after the checkpoint changed nothing, so the comparison proves nothing"


@pytest.mark.parametrize("experiment", ["tiny_kd.yaml", "tiny_align.yaml"])
def test_adapters_resume_bit_equal(experiment, pair, tmp_path):
    keep = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}", "dirpath": str(tmp_path)}
    common = ["--model.init_args.lora.rank=4", "--model.init_args.gradient_checkpointing=true"]
    common += [*pair, "--trainer.max_steps=4", "--trainer.val_check_interval=3"]
    callback = {"class_path": "ModelCheckpoint", "init_args": keep}
    whole = main([*config(tmp_path, "whole", experiment, callback), *common])
    resumed = main(
        [*config(tmp_path, "resumed", experiment), *common, f"--ckpt_path={tmp_path / 'step=2.ckpt'}"]
    )
    saved = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    assert saved["lora"]["rank"] == 4
    own = ("lora_", "router", "draft_temperature")
    assert all(any(part in name for part in own) for name in saved["state_dict"])
    expected, found = whole.model.state_dict(), resumed.model.state_dict()
    assert expected.keys() == found.keys() == saved["state_dict"].keys()
    assert not [name for name in expected if not torch.equal(expected[name], found[name])]
    changed = [name for name, value in expected.items() if not torch.equal(value, saved["state_dict"][name])]
    assert any("lora_B" in name for name in changed)
    merged = merged_weights(whole.model.drafter.backbone.model)
    exported = load_drafter(str(tmp_path / "whole/drafter")).backbone.model.state_dict()
    assert exported.keys() == merged.keys()
    assert all(torch.equal(value, merged[name]) for name, value in exported.items())


def test_resume_without_a_checkpoint_starts_from_the_beginning(pair, tmp_path):
    words = [*config(tmp_path, "fresh", "tiny_kd.yaml"), *pair, "--trainer.max_steps=1"]
    with pytest.warns(UserWarning, match="no last checkpoint available"):
        resumed = main([*words, "--ckpt_path=last"])
    assert resumed.trainer.global_step == 1


def test_checkpoint_of_another_pair_is_refused(pair, tmp_path):
    first = main([*config(tmp_path, "first", "tiny_kd.yaml"), *pair, "--trainer.max_steps=1"])
    first.trainer.save_checkpoint(tmp_path / "first.ckpt")
    other = save_pair(tmp_path / "other", layers=2)
    drafter = [word for word in other if ".drafter=" in word]
    words = config(tmp_path, "second", "tiny_kd.yaml")
    for option in ("--ckpt_path", "--model.init_args.init_from"):
        start = f"{option}={tmp_path / 'first.ckpt'}"
        with pytest.raises(ValueError, match="another pair: its drafter learnt from"):
            main([*words, *other, start])
        with pytest.raises(ValueError, match=r"another pair.*weights missing"):
            main([*words, *pair, *drafter, start])
