"""The measuring scripts at toy size: their checks, not their times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_modules.recipe import Recipe
from tiger.evaluation.prompts import load_prompts

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


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
