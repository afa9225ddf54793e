"""The measuring scripts at toy size: their checks, not their times."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_modules.recipe import Recipe
from data_modules.synthetic.world import generate
from tiger.decoding.records import Generation
from tiger.evaluation.prompts import load_prompts

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(monkeypatch, name, *options, **quick):
    """Runs a script as `make bench` does, at other sizes where it has a table of them."""
    script = importlib.import_module(name)
    if quick:
        assert quick.keys() == script.QUICK.keys()
        monkeypatch.setattr(script, "QUICK", quick)
    monkeypatch.setattr(sys, "argv", [name, "--quick", *options])
    script.main()


JSON_LINES = {
    "kd_throughput": (["--num_anchors", "2"], {"num_examples": 2, "repeats": 1}, "anchors remembered_ratio"),
    "loss_memory": ([], {"counts": (16, 32), "max_elements": 2**20}, "growth"),
    "rollout_throughput": (
        ["--num_anchors=2", "--group_size=2", "--block_size=6", "--rollout_chunk=2"],
        {"num_examples": 2, "repeats": 1},
        "step_ratio accepted",
    ),
    "teacher_cache": (["--top_k", "16"], {"num_examples": 2, "repeats": 1}, "top_k gradient"),
}


@pytest.mark.parametrize("name", JSON_LINES)
def test_a_script_ends_with_a_line_of_json(scripts, monkeypatch, capsys, name):
    options, quick, more = JSON_LINES[name]
    run(monkeypatch, name, "--json", *options, **quick)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1, "the table is missing"
    found = json.loads(lines[-1])
    assert found.keys() == {"ratio", "equal", *more.split()}
    assert found["equal"] is True
    assert found["ratio"] > 0


def test_round_overhead_ends_with_a_line_of_json(scripts, monkeypatch, capsys):
    import round_overhead

    monkeypatch.setattr(round_overhead, "load_prompts", lambda name, count: load_prompts(name, 2))
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "round_overhead", "--json", "--max_new_tokens", "8")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == {"ratio", "equal", "outside_model_calls", "curve"}
    assert found["equal"] is True
    assert [row["batch"] for row in found["curve"]] == [1, 8, 16]
    assert bool(stop.value.code) == (found["outside_model_calls"] > round_overhead.LIMIT)


def test_decoding_speed_compares_equal_answers(scripts, monkeypatch, capsys, tmp_path):
    file, quick = tmp_path / "speed.json", {"num_prompts": 1, "repeats": 1}
    run(monkeypatch, "decoding_speed", "--max_new_tokens", "8", "--json", str(file), **quick)
    found, table = json.loads(file.read_text()), capsys.readouterr().out
    assert found["settings"]["max_new_tokens"] == 8
    assert found["results"].keys() == {"transformers", "autoregressive", "tiger"}
    assert all(row["tokens_per_second"] > 0 for row in found["results"].values())
    assert all(name in table for name in found["results"])
    assert found["results"]["autoregressive"]["speedup"] == 1
    module = importlib.import_module("decoding_speed")
    monkeypatch.setattr(module, "transformers_generate", lambda *args: lambda prompts: [Generation("", [1])])
    with pytest.raises(RuntimeError, match=r"The answers to .* differ"):
        run(monkeypatch, "decoding_speed", "--max_new_tokens", "8", **quick)


def test_world_throughput_measures_every_kind(scripts, monkeypatch, capsys):
    import world_throughput

    monkeypatch.setattr(world_throughput, "generate", lambda seed, kind=None: generate(seed % 2, kind))
    run(monkeypatch, "world_throughput")
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [*world_throughput.KINDS, "mixture"]


def test_make_bench_runs_scripts_that_take_its_flags(scripts, monkeypatch, capsys):
    for path in BENCHMARKS.glob("*.py"):
        monkeypatch.setattr(sys, "argv", [path.name, "--help"])
        with pytest.raises(SystemExit) as stop:
            importlib.import_module(path.stem).main()
        assert stop.value.code == 0
        assert "--quick" in capsys.readouterr().out, path.name


def test_gpu_check_at_toy_size(tmp_path):
    file = tmp_path / "check.json"
    command = [
        sys.executable,
        BENCHMARKS / "gpu_check.py",
        "--size",
        "toy",
        "--device",
        "cpu",
        "--json",
        file,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["hardware"]
    assert found["fp32_exact"] is True
    assert found["bandwidth_GBps"] > 0
    assert 0.5 < found["half_agreement"] <= 1
    assert set(found["drafters"]) == {"half", "two layers"}
    for rows in found["drafters"].values():
        assert [row["passes"]["batch"] for row in rows] == [1, 8, 16]
        for row in rows:
            assert [entry["accepted"] for entry in row["speedups"]] == [0, 4, 8]
            predicted = [entry["predicted"] for entry in row["speedups"]]
            assert predicted == sorted(predicted)
            assert min(row["limits"].values()) > 0
            assert "AccLen" in done.stdout


def test_the_cost_model_by_hand(scripts):
    from gpu_check import predicted_speedup

    passes = {"autoregressive step": 2.0, "draft round": 3.0, "verify": 3.0}
    assert predicted_speedup(0, passes) == pytest.approx(2 / 6)
    assert predicted_speedup(5, passes) == pytest.approx(2.0)


def test_a_script_that_is_not_followed_is_noticed(scripts, monkeypatch):
    import gpu_check
    import torch
    from support.scripted import ScriptedDrafter, ScriptedVerifier

    from tiger.drafting.routed import RoutedDrafter

    device, size = torch.device("cpu"), gpu_check.TOY
    verifier = gpu_check.build(*size.verifier, device, torch.float32, ScriptedVerifier)
    drafter = RoutedDrafter(gpu_check.build("tiny/vanilla", 2, device, torch.float32)).eval()
    requests = gpu_check.requests(verifier, size, 1)
    passes = {"autoregressive step": 1.0, "draft round": 1.0, "verify": 1.0}
    rows = gpu_check.decode_speedups(verifier, drafter, requests, size, passes)
    assert [row["accepted"] for row in rows] == list(size.accepted)
    monkeypatch.setattr(ScriptedDrafter, "propose", lambda self, *args: self.inner.propose(*args))
    with pytest.raises(RuntimeError, match=r"Rounds accepted .* instead of 4"):
        gpu_check.decode_speedups(verifier, drafter, requests, size, passes)


def test_the_stand_in_mixture_is_built_whole(scripts, tmp_path):
    from mixture_memory import measure, write

    counts = {"llava": 12, "textvqa": 8, "scienceqa": 4, "docvqa": 3, "tallyqa": 3, "chartqa": 2}
    write(tmp_path, counts)
    found = measure(Recipe.of(json.loads((tmp_path / "recipe.json").read_text())), 6)
    assert found["rows"] == sum(counts.values())
    assert 0 < found["anonymous_GiB"] <= found["peak_GiB"]
    assert min(found["built_rows_per_s"], found["decoded_rows_per_s"]) > 0


def test_round_overhead_counts_what_is_outside_of_models(scripts):
    from round_overhead import curve, overhead

    prompts = load_prompts("synthetic", 2)
    assert 0 < overhead("tiny/verifier", "tiny/tiger", prompts, 8, 24) < 0.5
    rows = curve("tiny/verifier", "tiny/tiger", prompts, 8, 12, 1)
    assert [row["batch"] for row in rows] == [1, 8, 16]
    assert all(row["speedup"] == row["tiger"] / row["autoregressive"] for row in rows)
