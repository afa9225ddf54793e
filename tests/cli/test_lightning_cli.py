import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from helpers import save_pair
from PIL import Image

from data_modules.evaluation import SETS
from data_modules.prompt_data import PromptDataModule
from tiger.cli import expand_configs, main
from tiger.drafting.heads.methods import HEADS
from tiger.drafting.lora import Lora
from tiger.drafting.methods import METHODS as TRAINING_FREE
from tiger.training import KDWarmStart

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STAGES = {path.stem: yaml.safe_load(path.read_text()) for path in (CONFIGS / "stage").glob("*.yaml")}
METHODS = {
    name: stage["model"]["init_args"]["method"]
    for name, stage in STAGES.items()
    if "method" in stage["model"]["init_args"]
}
HEAD_TASKS = [CONFIGS / f"experiment/tiny_{name}.yaml" for name in sorted(METHODS)]
TASKS = sorted(
    path
    for path in (CONFIGS / "experiment").glob("*.yaml")
    if "benchmark" not in path.stem and path not in HEAD_TASKS
)
BENCHMARKS = sorted((CONFIGS / "experiment").glob("*benchmark.yaml"))
BASES = {
    "trainer": ["data/synthetic_kd.yaml", "stage/kd.yaml"],
    "data": ["data/synthetic_kd.yaml", "stage/kd.yaml"],
    "stage": ["data/synthetic_kd.yaml"],
    "pair": ["data/synthetic_kd.yaml", "stage/kd.yaml"],
    "experiment": [],
}
RECIPES = {
    "evaluation_images",
    *(f"{name}{end}" for name in ("kd_mixture", "align_pool") for end in ("", "_synthetic")),
}
PARTS = [
    path
    for part in BASES
    for path in sorted((CONFIGS / part).glob("*.yaml"))
    if path not in BENCHMARKS and path.stem not in RECIPES  # which tests/data_modules/test_recipes.py reads
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def deep_pair(tmp_path_factory):
    """With layers enough for the features of every head."""
    return save_pair(tmp_path_factory.mktemp("deep_pair"), layers=4)


def configs(*paths):
    return [word for path in paths for word in ("--config", str(path))]


def run(verb, *words):
    return main([verb, *words])


def printed(capsys, *words):
    """The resolved config that `--print_config` shows."""
    with pytest.raises(SystemExit) as stop:
        run("fit", *words, "--print_config")
    output = capsys.readouterr()
    assert stop.value.code == 0, output.err
    return yaml.safe_load(output.out)


@pytest.mark.parametrize("path", PARTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_parses(path, capsys):
    needed = [CONFIGS / name for name in BASES[path.parent.name]]
    resolved = printed(capsys, *configs(*needed, path))
    assert resolved["model"]["class_path"].startswith("tiger.training.")
    name = "MixtureDataModule" if path.stem == "mixture_folder" else "SyntheticDataModule"
    assert resolved["data"]["class_path"] == f"data_modules.{name}"
    assert path.read_text().startswith("# "), "each config opens with a line that says what it is"


def test_every_folder_of_configs_is_tested():
    # No part of a fit; test_training_free.py, test_pruners.py and tests/ablation read them.
    others = {"drafter", "pruner", "ablation"}
    assert {path.relative_to(CONFIGS).parts[0] for path in CONFIGS.rglob("*.yaml")} == set(BASES) | others


@pytest.mark.parametrize("stage", ["kd", "align"])
def test_paper_settings(stage, capsys):
    parts = ("trainer/single_gpu", f"data/synthetic_{stage}", f"stage/{stage}")
    resolved = printed(capsys, *configs(*(CONFIGS / f"{part}.yaml" for part in parts)))
    task, trainer = resolved["model"]["init_args"], resolved["trainer"]
    rate = task["optimizer"]["init_args"]["lr"]
    if stage == "kd":
        assert (rate, trainer["accumulate_grad_batches"]) == (5e-6, 4)
    else:
        assert (rate, trainer["accumulate_grad_batches"]) == (1e-5, 8)
        assert (task["group_size"], task["block_size"], task["beta"]) == (4, 32, 0.02)
        assert (task["reward"], task["credit"]) == ("accepted_prefix", "block")
    assert task["lora"] == {**asdict(Lora()), "rank": 16, "alpha": 32.0}
    assert task["num_routed"] == 8
    assert trainer["max_epochs"] == 1
    assert trainer["precision"] == "bf16-mixed"
    assert resolved["data"]["init_args"]["batch_size"] == 1


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_every_experiment_runs(path, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("fit", *configs(path), *pair, "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false")
    assert {entry.name for entry in tmp_path.iterdir()} <= {"runs"}


def test_every_draft_head_has_a_stage():
    assert set(HEADS) <= set(METHODS.values())


@pytest.mark.parametrize("name", [name for name, method in sorted(METHODS.items()) if method in HEADS])
def test_every_head_trains(name, deep_pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, own = (
        CONFIGS / f"experiment/tiny_{name}.yaml",
        [word for word in deep_pair if ".drafter=" not in word],
    )
    cli = run("fit", *configs(path), *own, "--trainer.max_steps=1", "--trainer.val_check_interval=1",
              "--trainer.enable_progress_bar=false")  # fmt: skip
    assert cli.model.drafter.method == METHODS[name]
    assert "accept/length" in cli.trainer.callback_metrics
    notes = json.loads((tmp_path / f"runs/tiny_{name}/drafter/head.json").read_text())
    assert (notes["method"], notes["step"]) == (METHODS[name], 1)
    assert notes["training_seconds"] > 0


def test_a_run_leaves_config_provenance_checkpoint_and_drafter(pair, tmp_path, monkeypatch):
    from tiger.drafting.saving import load_drafter

    monkeypatch.chdir(tmp_path)
    cli = run("fit", *configs(CONFIGS / "experiment/tiny_kd.yaml"), *pair, "--trainer.max_steps=2",
              "--trainer.val_check_interval=2",
              "--trainer.enable_progress_bar=false")  # fmt: skip
    folder = tmp_path / "runs" / "tiny_kd"
    assert {"config.yaml", "provenance.json", "drafter", "checkpoints"} <= {
        path.name for path in folder.iterdir()
    }
    assert "seed_everything: 0" in (folder / "provenance.json").read_text()
    drafter = load_drafter(str(folder / "drafter"))
    for name, value in drafter.state_dict().items():
        assert torch.equal(value, cli.model.drafter.state_dict()[name]), name
    assert "accept/length" in cli.trainer.callback_metrics
    again = run("fit", "--config", str(folder / "config.yaml"), "--trainer.fast_dev_run=true",
                "--trainer.enable_progress_bar=false")  # fmt: skip
    assert again.model.hparams == cli.model.hparams


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_other_verbs_decode_and_leave_no_files(verb, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(verb, *configs(CONFIGS / "data/synthetic_kd.yaml", CONFIGS / "stage/kd_tiny.yaml"), *pair,
        "--trainer.logger=false", "--trainer.accelerator=cpu", "--trainer.precision=32-true",
        "--trainer.enable_progress_bar=false")  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_stage_two_starts_from_a_checkpoint_of_stage_one(pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = run("fit", *configs(CONFIGS / "experiment/tiny_kd.yaml"), *pair, "--trainer.max_steps=1",
                "--trainer.enable_progress_bar=false")  # fmt: skip
    checkpoint = tmp_path / "kd.ckpt"
    first.trainer.save_checkpoint(checkpoint)
    second = run("validate", *configs(CONFIGS / "experiment/tiny_align.yaml"), *pair,
                 f"--model.init_args.init_from={checkpoint}", "--trainer.logger=false",
                 "--trainer.enable_progress_bar=false")  # fmt: skip
    for name, value in first.model.drafter.state_dict().items():
        assert torch.equal(value, second.model.drafter.state_dict()[name]), name


def test_a_checkpoint_never_overrides_the_config(pair, tmp_path, monkeypatch):
    """Lightning 2.6 would take class and options of the model from the file of --ckpt_path (#21246)."""
    monkeypatch.chdir(tmp_path)
    stage = [*configs(CONFIGS / "experiment/tiny_kd.yaml"), *pair, "--trainer.enable_progress_bar=false"]
    first = run("fit", *stage, "--trainer.max_steps=1", "--model.init_args.guidance_weight=0.25")
    first.trainer.save_checkpoint(tmp_path / "kd.ckpt")
    resumed = run(
        "validate", *stage, f"--ckpt_path={tmp_path / 'kd.ckpt'}", "--model.init_args.guidance_weight=0.75"
    )
    assert resumed.model.hparams.guidance_weight == 0.75
    align = [*configs(CONFIGS / "experiment/tiny_align.yaml"), *pair, "--trainer.enable_progress_bar=false"]
    with pytest.raises(ValueError, match=r"another stage: KDWarmStart wrote it.*init_from"):
        run("fit", *align, f"--ckpt_path={tmp_path / 'kd.ckpt'}", "--trainer.max_steps=2")


def test_verifier_of_the_data_is_that_of_the_task(capsys):
    stage = configs(CONFIGS / "data/synthetic_kd.yaml", CONFIGS / "stage/kd.yaml")
    resolved = printed(capsys, *stage, "--model.init_args.verifier=somewhere",
                       "--data.init_args.verifier=elsewhere",
                       "--model.init_args.verifier_dtype=float16",
                       "--model.init_args.verifier_quantization=8bit")  # fmt: skip
    assert resolved["data"]["init_args"].get("verifier", "somewhere") == "somewhere"
    assert resolved["data"]["init_args"].get("verifier_dtype", "float16") == "float16"
    assert resolved["data"]["init_args"].get("verifier_quantization", "8bit") == "8bit"


@pytest.mark.parametrize("stage", ["kd", "align"])
def test_tiny_stages_train_all_weights(stage, capsys):
    parts = configs(CONFIGS / f"data/synthetic_{stage}.yaml", CONFIGS / f"stage/{stage}_tiny.yaml")
    assert printed(capsys, *parts)["model"]["init_args"]["lora"] is None


def test_out_of_memory_says_what_to_lower(pair, tmp_path, monkeypatch):
    def full(self, batch, batch_idx):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(KDWarmStart, "training_step", full)
    with pytest.raises(torch.OutOfMemoryError) as error:
        run("fit", *configs(CONFIGS / "experiment/tiny_kd.yaml"), *pair, "--trainer.fast_dev_run=true",
            "--trainer.enable_progress_bar=false")  # fmt: skip
    message = str(error.value)
    assert message.startswith("CUDA out of memory. Tried to allocate 2.00 GiB.")
    knobs = ("batch_size", "num_anchors", "group_size", "gradient_checkpointing", "lora", "quantization")
    assert all(knob in message for knob in knobs)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.init_args.blok_size=3", "blok_size"),
        ("--trainer.max_step=3", "max_step"),
        ("--data.init_args.mixture=ocean", "ocean"),
        ("--model=KDWarmStrat", "KDWarmStrat"),
    ],
)
def test_unknown_keys_and_values_are_named(option, message, capsys):
    stage = configs(CONFIGS / "data/synthetic_kd.yaml", CONFIGS / "stage/kd.yaml")
    with pytest.raises(SystemExit) as stop:
        run("fit", *stage, option)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.init_args.block_size=0", "block_size 0 and num_anchors 4 must be 1 or more."),
        ("--data.init_args.batch_size=0", "Need batch_size >= 1, got 0."),
    ],
)
def test_a_class_that_refuses_its_options_says_so_alone(option, message, capsys):
    with pytest.raises(SystemExit) as stop:
        run("fit", *configs(CONFIGS / "experiment/tiny_kd.yaml"), option)
    assert (stop.value.code, capsys.readouterr().err) == (2, f"python -m tiger: error: {message}\n")


@pytest.mark.parametrize(
    ("experiment", "option", "message"),
    [
        ("kd", "--model.init_args.verifier=tiny/verifer", "no folder 'tiny/verifer'"),
        ("kd", "--model.init_args.drafter=tiny/vanila", "no folder 'tiny/vanila'"),
        ("kd", "--model.init_args.init_from=kd.ckpt", "no checkpoint kd.ckpt"),
        ("eagle3", "--model.init_args.init_from=heads", r"heads holds no head\.safetensors"),
    ],
)
def test_all_models_are_looked_for_first(experiment, option, message, pair, tmp_path, monkeypatch):
    own = [word for word in pair if experiment == "kd" or ".drafter=" not in word]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PromptDataModule, "setup", None)  # where the verifier answers
    with pytest.raises(FileNotFoundError, match=message):
        run("fit", *configs(CONFIGS / f"experiment/tiny_{experiment}.yaml"), *own, option,
            "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false")  # fmt: skip


def test_unknown_key_in_a_file_is_named(tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(
        f"extends: {CONFIGS / 'experiment/tiny_kd.yaml'}\nmodel:\n  init_args:\n    blok_size: 3\n"
    )
    with pytest.raises(SystemExit) as stop:
        run("fit", "--config", str(path))
    assert stop.value.code == 2
    assert "blok_size" in capsys.readouterr().err


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_configs_parse(path):
    from jsonargparse import ActionConfigFile, ArgumentParser

    from tiger.evaluation.runner import benchmark

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_function_arguments(benchmark)
    resolved = parser.parse_args(expand_configs(configs(path)))
    stages = {"vanilla", "kd", "kd_continued", "tiger"}
    compared = {"vanilla", "tiger", *METHODS, *TRAINING_FREE}
    decoders = {"demo_benchmark": stages, "tiny_benchmark": stages, "compare_benchmark": compared}
    assert set(resolved.decoders) == decoders.get(path.stem, {"vanilla"})
    assert list(resolved.temperatures) == [0.0, 1.0]
    names = [resolved.dataset] if isinstance(resolved.dataset, str) else resolved.dataset
    assert {name.partition("@")[0] for name in names} <= set(SETS)
    assert path.read_text().startswith("# ")


def test_benchmark_and_generate_run_on_what_training_left(pair, tmp_path, capsys):
    folders = [word.split("=")[1] for word in pair[:2]]
    decoders = yaml.safe_dump({"vanilla": folders[1]}, default_flow_style=True).strip()
    common = ["--verifier", folders[0], "--max_new_tokens=4", "--num_threads=1"]
    cells = main(["benchmark", "--config", str(BENCHMARKS[-1]), *common, "--decoders", decoders,
                  "--num_prompts=2", "--speed_prompts=0", "--output", str(tmp_path)])  # fmt: skip
    assert {(cell["decoder"], cell["temperature"]) for cell in cells} == {
        (name, temperature) for name in ("autoregressive", "vanilla") for temperature in (0.0, 1.0)
    }
    assert len(json.loads((tmp_path / "metrics.json").read_text())) == len(cells)
    Image.new("RGB", (96, 96), "red").save(tmp_path / "red.png")
    answer = main(["generate", "--images", f"[{tmp_path / 'red.png'}]", "--prompt=What?", *common,
                   "--drafter", folders[1]])  # fmt: skip
    assert 1 <= len(answer.tokens) <= 4
