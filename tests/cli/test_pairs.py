from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from standins_llava import llava_next

from tiger.cli import main

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STAGES = sorted(path.stem for path in (CONFIGS / "stage").glob("*.yaml"))
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


@pytest.mark.parametrize(("stage", "pair"), product(STAGES, PAIRS), ids="-".join)
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


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    for seed, role in enumerate(("verifier", "drafter")):
        llava_next(folder / role, role, seed)
    return folder


@pytest.mark.parametrize("stage", ["kd", "align"])
def test_the_stages_run_on_the_stand_in_of_llava_next(stage, llava, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli = main(["fit", *stage_and_pair(stage, "llava_next_7b_13b"), *TOY,
                f"--model.init_args.verifier={llava / 'verifier'}",
                f"--model.init_args.drafter={llava / 'drafter'}",
                "--model.init_args.max_new_tokens=4", "--data.init_args.max_new_tokens=6",
                f"--data.init_args.cache_dir={llava / 'cache'}",
                "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false"])  # fmt: skip
    assert cli.trainer.global_step == 1
    assert cli.model.verifier.dtype == torch.bfloat16
    assert "accept/length" in cli.trainer.callback_metrics
