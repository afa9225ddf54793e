from pathlib import Path

import pytest
from huggingface_hub import constants

from tiger.cli import main
from tiger.drafting.lora import Lora, add_adapters
from tiger.drafting.saving import load_drafter
from tiger.planning.configs import KNOWN, load_config
from tiger.planning.plan import Stage, training_memory
from tiger.planning.shapes import adapter_parameters, shape_of
from tiger.planning.workload import Workload

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# What the hub counts in the published weights.
PUBLIC = {
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen/Qwen3-VL-32B-Instruct": 33_357_390_064,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "llava-hf/llava-v1.6-vicuna-7b-hf": 7_063_431_168,
    "llava-hf/llava-v1.6-vicuna-13b-hf": 13_351_499_776,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_their_published_size(name):
    shape = shape_of(load_config(name))
    assert shape.parameters == PUBLIC[name]
    rest = shape.parameters - shape.vision - shape.linear - shape.embedding
    assert 0 < rest - (0 if shape.parameters < 6e9 and "llava" not in name else shape.head) < 1e6


@pytest.mark.parametrize("name", ["Qwen/Qwen3-VL-2B-Instruct", "llava-hf/llava-v1.6-vicuna-7b-hf"])
def test_a_local_config_is_enough(name, tmp_path):
    load_config(name).save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    assert shape_of(load_config(str(tmp_path))) == shape_of(load_config(name))


@pytest.mark.parametrize("name", ["nobody/Unknown-VL-1B", "/nowhere/at/all"])
def test_a_missing_config_says_what_to_do(name):
    with pytest.raises(FileNotFoundError, match=r"Found no config\.json of .*give that folder as --model"):
        load_config(name)


def words(*files):
    return [word for file in files for word in ("--config", str(CONFIGS / file))]


@pytest.mark.parametrize("stage", ["stage/kd.yaml", "stage/align.yaml"])
@pytest.mark.parametrize("first", [True, False])
def test_the_verb_prints_a_plan_whatever_the_order(stage, first, capsys):
    files = ["pair/qwen3_vl_4b_8b.yaml", stage]
    found = main(["plan", *words(*(files if first else files[::-1])), "--gpu_memory", "141GB"])
    text = capsys.readouterr().out
    assert "verifier  Qwen/Qwen3-VL-8B-Instruct: 8,767,123,696 parameters" in text
    for part in ("weights", "gradients", "optimizer", "KV", "activations", "logits", "<- peak"):
        assert part in text
    assert "largest on 141GB: training batch" in text
    assert ("group" in text.split("largest")[1]) == ("align" in stage)
    for row in ("autoregressive step", "verify 33 tokens", "draft step", "training step"):
        assert row in text
    assert found.verifier["weights"] == 2 * 8_767_123_696
    assert 4 * 1e7 < found.drafter["gradients"] < 4 * 1e8  # adapters and router


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_known_model_can_be_planned(name):
    shape = shape_of(load_config(name))
    work = Workload(1, 64, 1024, 256, num_anchors=4, block_size=32)
    assert training_memory(shape, shape, work, Stage(align=False)).peak > 18 * shape.parameters * 0.8


def test_trainer_files_count(capsys):
    files = ("trainer/base.yaml", "trainer/cpu.yaml", "stage/kd_tiny.yaml", "pair/tiny.yaml")
    main(["plan", *words(*files), "--answer_tokens", "60", "--visual_tokens", "64"])
    text = capsys.readouterr().out
    assert "KD, 32-true, batch 32, 4 anchors, group 1, block 8; 64 prompt, 64 visual and 60 answer" in text


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--answer_tokens=0", "answer_tokens is 0"),
        ("--visual_tokens=-1", "visual_tokens is -1"),
        ("--model.init_args.verifier_dtype=int3", "verifier_dtype is 'int3'; choose one of float32"),
        ("--gpu_memory=much", "gpu_memory is 'much'"),
    ],
)
def test_values_out_of_range_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        main(["plan", *words("stage/kd_tiny.yaml", "pair/tiny.yaml"), option])


def test_a_misspelt_option_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["plan", *words("stage/kd_tiny.yaml", "pair/tiny.yaml"), "--model.init_args.blocksize=3"])
    assert "blocksize" in capsys.readouterr().err


@pytest.mark.parametrize("pair", sorted(path.stem for path in (CONFIGS / "pair").glob("*.yaml")))
def test_adapters_of_every_pair(pair):
    files = words(f"pair/{pair}.yaml", "stage/kd.yaml")
    large, small = main(["plan", *files]), main(["plan", *files, "--model.init_args.lora={rank: 8}"])
    adapters = large.drafter["gradients"] - small.drafter["gradients"]  # half of rank 16
    assert large.drafter["weights"] - small.drafter["weights"] == adapters > 0
    assert large.drafter["weights"] > 5 * large.drafter["gradients"]
    lean = main(["plan", *files, "--model.init_args.gradient_checkpointing=true"])
    assert lean.drafter["activations"] < 0.5 * large.drafter["activations"]


def test_targets_may_be_left_out_or_chosen():
    files = words("pair/tiny.yaml", "stage/kd_tiny.yaml")
    every = main(["plan", *files, "--model.init_args.lora={rank: 8}"])
    one = main(["plan", *files, "--model.init_args.lora={rank: 8, targets: [q_proj]}"])
    assert one.drafter["gradients"] < every.drafter["gradients"]
    with pytest.raises(ValueError, match=r"targets qproj match nothing.*down_proj, gate_proj"):
        main(["plan", *files, "--model.init_args.lora={rank: 8, targets: [qproj]}"])


def test_adapters_are_counted_as_they_are_made():
    config, lora = load_config("tiny/vanilla"), Lora(rank=4, targets=["q_proj", "v_proj", "down_proj"])
    drafter = load_drafter("tiny/vanilla")
    add_adapters(drafter, lora)
    made = sum(p.numel() for p in drafter.backbone.parameters() if p.requires_grad)
    assert adapter_parameters(config, lora) == made > 0


@pytest.mark.parametrize(("bits", "share"), [("4bit", 0.25), ("8bit", 0.5)])
def test_a_quantized_verifier_is_smaller(bits, share):
    files = words("pair/qwen3_vl_4b_8b.yaml", "stage/kd.yaml")
    plain, small = (
        main(["plan", *files]),
        main(["plan", *files, f"--model.init_args.verifier_quantization={bits}"]),
    )
    linear = 2 * shape_of(load_config("Qwen/Qwen3-VL-8B-Instruct")).linear
    saved = plain.verifier["weights"] - small.verifier["weights"]
    assert saved == pytest.approx((1 - share) * linear, rel=0.02)
    assert small.drafter == plain.drafter


def test_a_pinned_model_is_planned_as_it_is(tmp_path, monkeypatch):
    name = "Qwen/Qwen3-VL-2B-Instruct"
    assert shape_of(load_config(f"{name}@main")) == shape_of(load_config(name))
    files = words("pair/tiny.yaml", "stage/kd_tiny.yaml")
    commit, cache = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--owner--model"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/v2").write_text(commit)
    load_config("tiny/vanilla").save_pretrained(cache / "snapshots" / commit)
    found = main(["plan", *files, "--model.init_args.drafter=owner/model@v2"])
    assert found == main(["plan", *files, "--model.init_args.drafter=tiny/vanilla"])
    with pytest.raises(FileNotFoundError, match=r"Found no config\.json of 'owner/model@v3'"):
        main(["plan", *files, "--model.init_args.drafter=owner/model@v3"])


def test_a_family_that_is_not_supported_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="is a 'bert' model; supported families"):
        load_config(str(tmp_path))
