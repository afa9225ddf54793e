from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from standins import FAMILIES, save_standin

from tiger.cli import main

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STAGES = sorted(  # heads have no drafter that a pair could name
    path.stem for path in (CONFIGS / "stage").glob("*.yaml") if "DraftHead" not in path.read_text()
)
PAIRS = {
    "tiny": ("tiny/verifier", "tiny/vanilla"),
    "qwen3_vl_2b_8b": ("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"),
    "qwen3_vl_4b_8b": ("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-4B-Instruct"),
    "qwen3_vl_8b_32b": ("Qwen/Qwen3-VL-32B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"),
    "qwen2_5_vl_3b_7b": ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"),
    "llava_next_7b_13b": ("llava-hf/llava-v1.6-vicuna-13b-hf", "llava-hf/llava-v1.6-vicuna-7b-hf"),
}
TOY = ["--data.init_args.num_train=4", "--data.init_args.num_validation=2", "--data.init_args.num_test=2"]


def stage_and_pair(stage, pair):
    parts = ("trainer/cpu", f"data/synthetic_{stage.split('_')[0]}", f"stage/{stage}", f"pair/{pair}")
    return [word for part in parts for word in ("--config", str(CONFIGS / f"{part}.yaml"))]


def test_every_pair_is_known_here():
    assert {path.stem for path in (CONFIGS / "pair").glob("*.yaml")} == set(PAIRS)


@pytest.mark.parametrize(("stage", "pair"), list(product(STAGES, PAIRS)))
def test_every_pair_goes_with_every_stage(stage, pair, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fit", *stage_and_pair(stage, pair), "--print_config"])
    output = capsys.readouterr()
    assert stop.value.code == 0, output.err
    resolved = yaml.safe_load(output.out)
    options = resolved["model"]["init_args"]
    assert (options["verifier"], options["drafter"]) == PAIRS[pair]
    own = yaml.safe_load((CONFIGS / "stage" / f"{stage}.yaml").read_text())["model"]["init_args"]
    rate = options["optimizer"]["init_args"]["lr"]
    assert rate == own["optimizer"]["init_args"]["lr"]
    if pair != "tiny":  # which alone sets a type, for CPUs
        assert options["verifier_dtype"] == own["verifier_dtype"]


@pytest.mark.parametrize(
    "strategy", [["ddp"], ["fsdp2"], ["multi_node"], ["fsdp2", "multi_node"]], ids="-".join
)
@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_goes_with_every_strategy(strategy, pair, capsys):
    parts = ["trainer/base", *(f"trainer/{name}" for name in strategy)]
    words = [word for part in parts for word in ("--config", str(CONFIGS / f"{part}.yaml"))]
    with pytest.raises(SystemExit) as stop:
        main(["fit", *words, *stage_and_pair("kd", pair)[2:], "--print_config"])
    output = capsys.readouterr()
    assert stop.value.code == 0, output.err
    resolved = yaml.safe_load(output.out)
    trainer = resolved["trainer"]
    assert (trainer["accelerator"], trainer["precision"]) == ("gpu", "bf16-mixed")
    assert trainer["num_nodes"] == (2 if "multi_node" in strategy else 1)
    chosen = trainer["strategy"]
    assert ("FSDP2Strategy" in str(chosen)) == ("fsdp2" in strategy)
    assert resolved["model"]["init_args"]["lora"]["rank"] == 16


# The stand-in of each pair but the tiny one, which is its own.
STANDINS = {
    "qwen3_vl_4b_8b": "qwen3_vl",
    "qwen2_5_vl_3b_7b": "qwen2_5_vl",
    "llava_next_7b_13b": "llava_next",
}


@pytest.fixture(scope="module", params=STANDINS)
def pair(request, tmp_path_factory):
    """Name of a pair and the folder of its stand-in."""
    folder = tmp_path_factory.mktemp(request.param)
    for role in ("verifier", "drafter"):
        save_standin(STANDINS[request.param], folder / role, role)
    return request.param, folder


def test_every_family_has_a_pair():
    assert {pair.split("_vl")[0].split("_next")[0] for pair in PAIRS} - {"tiny"} == {
        family.split("_vl")[0].split("_next")[0] for family in FAMILIES
    }


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_runs_on_the_stand_in_of_every_family(stage, pair, tmp_path, monkeypatch):
    name, folder = pair
    monkeypatch.chdir(tmp_path)
    cli = main(["fit", *stage_and_pair(stage, name), *TOY,
                f"--model.init_args.verifier={folder / 'verifier'}",
                f"--model.init_args.drafter={folder / 'drafter'}",
                "--model.init_args.max_new_tokens=4", "--data.init_args.max_new_tokens=6",
                f"--data.init_args.cache_dir={folder / 'cache'}",
                "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false"])  # fmt: skip
    assert cli.trainer.global_step == 1
    own = yaml.safe_load((CONFIGS / "stage" / f"{stage}.yaml").read_text())["model"]["init_args"]
    assert cli.model.verifier.dtype == getattr(torch, own["verifier_dtype"])
    assert "accept/length" in cli.trainer.callback_metrics
