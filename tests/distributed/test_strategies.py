"""Several processes do what one process does, and what they leave fits one process and other strategies."""

import json
from collections import Counter
from itertools import product

import pytest
import runs
import torch
import yaml
from helpers import fresh_backbone, save_backbone
from ranks import spawn
from standins import save_standin

from tiger.cli import main
from tiger.drafting.saving import load_drafter
from tiger.training.checkpoints import load_stage

pytestmark = pytest.mark.dist
STAGES = [(strategy, kind) for strategy in runs.TOGETHER for kind in runs.TASKS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    runs.save_pair(folder)
    return folder


@pytest.fixture(scope="module")
def step(folder):
    return runs.step(folder, runs.ALONE, 1), runs.launch(folder, "step")


def checkpoints(folder):
    return {n: torch.load(folder / f"{n}.ckpt", weights_only=True) for n in ("auto", *runs.TOGETHER)}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Runs with adapters: the folder, and what each rank and then one process ends with."""
    folder = tmp_path_factory.mktemp("adapters")
    runs.save_pair(folder)
    runs.save(folder, runs.ALONE, 1, **runs.adapted(1))
    ranks = runs.launch(folder, "adapters")
    return folder, [*ranks, runs.resume(folder, runs.ALONE, 1, **runs.adapted(1))]


def distance(left, right):
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.mark.parametrize(("strategy", "kind"), STAGES)
def test_a_step_of_two_ranks_equals_one_of_a_single_process(step, strategy, kind):
    alone, ranks = step[0]["auto", kind], [rank[strategy, kind] for rank in step[1]]
    assert distance(alone["weights"], alone["start"]["weights"]) > 1e-2, "the step moved nothing"
    for rank in ranks:
        assert distance(rank["weights"], alone["weights"]) < 1e-5
        assert distance(rank["start"]["weights"], alone["start"]["weights"]) == 0
        for name in ("loss/total", "loss/guidance"):
            assert rank["metrics"][name] == pytest.approx(alone["metrics"][name], abs=1e-5)
        assert rank["metrics"].keys() == alone["metrics"].keys()


@pytest.mark.parametrize(("strategy", "kind"), STAGES)
def test_accepted_length_is_a_ratio_of_sums_over_ragged_ranks(step, strategy, kind):
    alone, ranks = step[0]["auto", kind], [rank[strategy, kind] for rank in step[1]]
    varied = [item for rank in ranks for item in rank["start"]["accepted"]]
    assert len(set(varied)) > 1
    for own, (one, *others) in ((alone["start"], [r["start"] for r in ranks]), (alone, ranks)):
        assert len(one["accepted"]) != len(others[0]["accepted"])
        rounds = [item for rank in (one, *others) for item in rank["accepted"]]
        assert Counter(rounds) == Counter(own["accepted"])
        for found in (own, one, *others):
            assert found["metrics"]["accept/length"] == pytest.approx(sum(rounds) / len(rounds), abs=1e-6)


@pytest.mark.parametrize("kind", runs.TASKS)
def test_only_fsdp2_holds_shards_and_decoding_has_whole_weights(step, kind):
    for rank in step[1]:
        found = rank["fsdp2", kind]["sharded"]
        assert all(name.startswith("_reference.") for name in found["in validation"])
        kept = found["between steps"]
        for prefix in (
            "verifier.",
            "_drafter.backbone.",
            *(["_reference.backbone."] if kind == "align" else []),
        ):
            for layer in (0, 1):
                stem = f"{prefix}model.model.language_model.layers.{layer}.self_attn.q_proj.weight"
                assert stem in kept
        assert {"_drafter.router.query.weight", "_drafter.router.key.weight"} <= kept
        assert any("embed_tokens" in name for name in kept)
        assert not any(".visual." in name for name in kept)
        assert rank["ddp", kind]["sharded"] == {"between steps": set(), "in validation": set()}


def test_a_step_of_a_draft_head_on_two_ranks_equals_one_of_a_single_process(folder):
    alone, ranks = runs.heads(folder, runs.ALONE, 1), runs.launch(folder, "heads")
    assert distance(alone[None]["weights"], alone[2]["weights"]) > 1e-3, "the step moved nothing"
    for rank, num_anchors in product(ranks, (None, 2)):
        found, expected = rank[num_anchors], alone[num_anchors]
        assert distance(found["weights"], expected["weights"]) < 1e-5
        assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)


@pytest.mark.slow
def test_a_rank_without_pictures_keeps_up_while_the_tower_learns(folder):
    alone, ranks = runs.mixed(folder, runs.ALONE, 1), runs.launch(folder, "mixed")
    for strategy, kind in STAGES:
        for rank in ranks:
            assert distance(rank[strategy, kind]["weights"], alone["auto", kind]["weights"]) < 1e-5
    start = load_drafter(str(folder / "drafter")).state_dict()
    moved = [n for n, value in alone["auto", "kd"]["weights"].items() if not torch.equal(value, start[n])]
    assert any(".visual." in name for name in moved)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava_next", "qwen2_5_vl"])
def test_a_step_of_another_family_equals_one_of_a_single_process(family, tmp_path):
    for role in ("verifier", "drafter"):
        save_standin(family, tmp_path / role, role)
    alone, ranks = runs.mixed(tmp_path, runs.ALONE, 1), runs.launch(tmp_path, "mixed")
    start = load_drafter(str(tmp_path / "drafter")).state_dict()
    for strategy, kind in STAGES:
        expected = alone["auto", kind]
        assert distance(expected["weights"], start) > 1e-3, "the step moved nothing"
        for rank in ranks:
            assert distance(rank[strategy, kind]["weights"], expected["weights"]) < 1e-4
            for name in ("loss/total", "loss/guidance"):
                assert rank[strategy, kind]["metrics"][name] == pytest.approx(
                    expected["metrics"][name], abs=1e-5
                )


def test_ranks_whose_rollouts_stop_early_wait_for_one_another(folder):
    alone, ranks = runs.early(folder, runs.ALONE, 1)["auto"], runs.launch(folder, "early")
    for strategy in runs.TOGETHER:
        found = [rank[strategy] for rank in ranks]
        assert len({length for rank in found for length in rank["lengths"]}) > 1, "all ranks stopped alike"
        assert all(distance(rank["weights"], alone["weights"]) < 1e-5 for rank in found)


def test_a_rank_whose_blocks_end_at_once_makes_the_passes_of_the_others(folder):
    alone, ranks = runs.at_once(folder, runs.ALONE, 1), runs.launch(folder, "at_once")
    for strategy, end in product(runs.TOGETHER, (False, True)):
        expected = alone["auto", end]
        for rank in ranks:
            assert rank[strategy, end]["passes"] == expected["passes"] > 2
            assert distance(rank[strategy, end]["weights"], expected["weights"]) < 1e-5
    assert min(end["metrics"]["reward/std"] for end in alone.values()) > 0.1  # the other rank's blocks learn


@pytest.mark.slow
def test_a_run_continues_under_another_strategy(tmp_path):
    runs.save_pair(tmp_path)
    module, used = runs.task(tmp_path, "align", runs.adam), runs.trainer("auto", 1, steps=2)
    used.fit(module, runs.data(tmp_path, 1))
    expected = runs.result(used, module)["weights"]
    runs.save(tmp_path, runs.ALONE, 1)
    ranks = runs.launch(tmp_path, "save_and_resume")
    saved = checkpoints(tmp_path / "align")
    for checkpoint in saved.values():
        assert checkpoint["state_dict"].keys() == saved["auto"]["state_dict"].keys()
        assert distance(checkpoint["state_dict"], saved["auto"]["state_dict"]) < 1e-5
        own, other = checkpoint["optimizer_states"][0], saved["auto"]["optimizer_states"][0]
        assert own["state"].keys() == other["state"].keys()
        assert own["param_groups"][0]["params"] == other["param_groups"][0]["params"]
    first = {
        n.removeprefix("_drafter."): v for n, v in saved["auto"]["state_dict"].items() if "_drafter" in n
    }
    second = {name: expected[name] for name in first}
    assert distance(second, first) > 1e-3, "the second step moved nothing"
    resumed = [*ranks, runs.resume(tmp_path, runs.ALONE, 1)]
    assert [len(found) for found in resumed] == [6, 6, 3]
    for found in resumed:
        for end in found.values():
            assert distance(end["weights"], expected) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", runs.TASKS)
def test_adapters_under_every_strategy(adapters, kind):
    folder, resumed = adapters
    saved = checkpoints(folder / kind)
    for checkpoint in saved.values():
        assert checkpoint["lora"]["rank"] == 4
        assert distance(checkpoint["state_dict"], saved["auto"]["state_dict"]) < 1e-5
        assert all(".lora_" in name or ".router." in name for name in checkpoint["state_dict"])
    learnt = [value for name, value in saved["auto"]["state_dict"].items() if "lora_B" in name]
    assert all(value.any() for value in learnt), "the adapters did not move"
    expected = resumed[-1][kind, "auto", "auto"]["weights"]
    for number, found in zip((6, 6, 3), resumed, strict=True):
        ends = [end["weights"] for key, end in found.items() if key[0] == kind]
        assert len(ends) == number
        assert max(distance(end, expected) for end in ends) < 1e-4
    exported = {name: load_drafter(str(folder / kind / name)).state_dict() for name in saved}
    for weights in exported.values():
        assert distance(weights, exported["auto"]) < 1e-5
        assert distance(weights, load_drafter(str(folder / "drafter")).state_dict()) > 1e-4


def test_ranks_that_differ_are_named(tmp_path):
    runs.save_pair(tmp_path)  # a pair whose drafter has no router yet
    for number, seed in enumerate((0, 9)):
        save_backbone(fresh_backbone("verifier", seed, 2), tmp_path / f"verifier{number}")
    for found in runs.launch(tmp_path, "differ"):
        for name in ("options", "drafter", "verifier"):
            assert f"{name}: rank 1" in found[name]
            assert "All processes must start from the same files" in found[name]
        assert "training data: rank 1" in found["data"]
    rank_0, rank_1 = (torch.load(tmp_path / f"differ{rank}.pt")["loss"] for rank in range(2))
    assert "Another rank's loss is not finite at step 0" in rank_0
    assert "The loss is nan at step 0" in rank_1


@pytest.mark.parametrize("strategy", runs.TOGETHER)
def test_the_command_line_leaves_one_set_of_files(folder, tmp_path, strategy):
    every_step = {"class_path": "ModelCheckpoint", "init_args": {"every_n_train_steps": 1, "save_last": True}}
    (tmp_path / "save.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks+": [every_step]}}))
    parts = ["trainer/base", f"trainer/{strategy}", "trainer/cpu", "data/synthetic_tiny", "stage/kd"]
    words = ["fit", *(f"--config={runs.ROOT}/configs/{part}.yaml" for part in parts)]
    words += [f"--config={tmp_path / 'save.yaml'}"]
    words += [f"--model.init_args.{role}={folder / role}" for role in ("verifier", "drafter")]
    words += [f"--data.init_args.cache_dir={tmp_path / 'cache'}", "--data.init_args.num_train=4"]
    words += ["--data.init_args.num_validation=3", "--data.init_args.num_test=0"]
    words += ["--model.init_args.max_new_tokens=8", "--data.init_args.max_new_tokens=8"]
    words += [f"--trainer.logger.init_args.save_dir={tmp_path}", "--trainer.logger.init_args.name=run"]
    words += ["--model.init_args.verifier_dtype=float32", "--trainer.enable_progress_bar=false"]
    together = ["--trainer.devices=2", "--data.init_args.batch_size=1", "--trainer.max_epochs=1"]
    texts = spawn(["-m", "tiger", *words, *together])
    assert sorted("Verifier answers" in text for text in texts) == [False, True]
    run = tmp_path / "run"
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    assert json.loads((run / "provenance.json").read_text())["world_size"] == 2
    notes = json.loads((run / "drafter/drafter.json").read_text())
    assert (notes["task"], notes["step"]) == ("KDWarmStart", 1)
    last = run / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    assert checkpoint["lora"]["rank"] == 16  # of stage/kd
    trained = load_drafter(str(folder / "drafter"))
    load_stage(trained, last, checkpoint["verifier_fingerprint"])
    assert distance(trained.state_dict(), load_drafter(str(run / "drafter")).state_dict()) == 0
    answers = [json.loads(line)["id"] for line in next(tmp_path.rglob("responses.jsonl")).open()]
    assert len(answers) == len(set(answers)) == 4
    alone = ["--trainer.devices=1", "--trainer.strategy=auto", "--data.init_args.batch_size=2"]
    resumed = main([*words, *alone, "--trainer.max_epochs=2", "--ckpt_path=last"])
    assert resumed.trainer.global_step == 2
