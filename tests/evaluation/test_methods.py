"""Training-free methods by name through `benchmark` and `generate`; trees in journal and page."""

import json
import re
from types import SimpleNamespace

import pytest
from helpers import prompts, save_backbone, tiny_backbone

from tests.decoding.test_greedy_equality import check_records
from tiger.backbones.base import Prompt
from tiger.backbones.images import load_image
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.pruners import PRUNERS, build_pruner
from tiger.decoding.records import Round
from tiger.drafting.methods import METHODS
from tiger.evaluation import runner
from tiger.evaluation.generate import generate
from tiger.evaluation.runner import benchmark
from tiger.evaluation.samples import from_record, to_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verifier")
    save_backbone(tiny_backbone(layers=2), folder)
    prompts(1)[0].images[0].save(folder / "image.png")
    return folder


def test_a_benchmark_names_methods_and_files(folder, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("method: racer\ntree_size: 16\n")
    settings = {
        "verifier": str(folder),
        "decoders": {name: name for name in METHODS} | {"small": str(path)},
        "num_prompts": 3,
        "speed_prompts": 0,
        "max_new_tokens": 12,
        "temperatures": (0.0,),
        "output": tmp_path / "results",
        "num_threads": None,
    }
    cells = benchmark(**settings)
    assert [cell["decoder"] for cell in cells] == ["autoregressive", *METHODS, "small"]
    assert all(cell["exact"] == 1 for cell in cells)
    assert all(len(cell["p_accept_ge"]) <= 8 for cell in cells)
    assert all(cell["rounds_per_token"] <= 1 for cell in cells)
    assert benchmark(**settings) == cells  # read back, trees and all
    path.write_text("method: racer\ntree_size: 2\n")  # another drafter, so no answer is read back
    changed = benchmark(**settings)
    assert changed[:-1] == cells[:-1]
    assert changed[-1]["acclen"] != cells[-1]["acclen"]


def test_a_warm_method_starts_anew_in_every_cell(folder, tmp_path, monkeypatch):
    path = tmp_path / "warm.yaml"
    path.write_text("method: token_recycling\nwarm: true\n")
    settings = {"verifier": str(folder), "decoders": {"warm": str(path)}, "num_prompts": 2}
    settings |= {"max_new_tokens": 6, "num_threads": None, "speed_prompts": 0, "device": "cpu"}
    both = benchmark(**settings, temperatures=(1.0, 0.0), output=tmp_path / "both")
    alone = benchmark(**settings, temperatures=(0.0,), output=tmp_path / "alone")
    assert both[2:] == alone
    with pytest.raises(ValueError, match=r"warm has `warm: true`.*Set speed_prompts 0 .*now 1 and 1"):
        benchmark(**settings | {"speed_prompts": 1}, output=tmp_path / "timed")
    monkeypatch.setattr(runner, "Shards", lambda: SimpleNamespace(rank=0, world_size=2))
    with pytest.raises(ValueError, match=r"run one process \(now 0 and 2\)"):
        benchmark(**settings, output=tmp_path / "shared")


def ask(folder, **changes):
    settings = {"images": str(folder / "image.png"), "verifier": str(folder), "max_new_tokens": 12}
    return generate("What is this?", **settings | changes)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_generate_with_a_method(folder, name, tmp_path, capsys):
    page = tmp_path / "page.html"
    answer = ask(folder, drafter=name, trace=page)
    assert "AccLen" in capsys.readouterr().out
    assert answer.tokens == ask(folder, drafter=None).tokens
    assert page.stat().st_size > 1000
    restored = from_record(to_record(answer))
    check_records(restored)
    assert [(r.drafted, r.parents) for r in restored.rounds] == [
        (r.drafted, r.parents) for r in answer.rounds
    ]


def test_a_method_routes_nothing(folder):
    with pytest.raises(ValueError, match=r"racer routes nothing, .*leave num_routed out"):
        ask(folder, drafter="racer", num_routed=4)


@pytest.mark.parametrize("name", sorted(PRUNERS))
def test_generate_with_a_pruner_is_lossy_and_says_so(folder, name, tmp_path, capsys):
    plain, pruned = ask(folder, drafter=None), ask(folder, drafter=name, compare=True)
    said = capsys.readouterr().out.splitlines()
    assert "x autoregressive speed · lossy: not the verifier's own answer" in said[-1]
    assert sum("lossy" in line for line in said) == 1
    picture = load_image(folder / "image.png")
    alone = AutoregressiveDecoder(build_pruner({"method": name}, tiny_backbone(layers=2)), 12)
    assert pruned.tokens == alone.generate([Prompt("What is this?", (picture,))])[0].tokens
    assert pruned.rounds == []
    path = tmp_path / "all.yaml"
    path.write_text(f"method: {name}\nkeep: {1.0 if name == 'vispruner' else [1.0, 1.0, 1.0]}\n")
    assert ask(folder, drafter=str(path), trace=tmp_path / "page.html").tokens == plain.tokens
    with pytest.raises(ValueError, match=f"{name} routes nothing"):
        ask(folder, drafter=name, num_routed=4)


def test_generate_with_typical_acceptance_is_lossy_and_says_so(folder, capsys):
    typical = {"drafter": "token_recycling", "acceptance": "typical_lossy", "max_new_tokens": 24}
    sampled = ask(folder, **typical, temperature=1.0, seed=1)
    assert "lossy: not the verifier's own answer" in capsys.readouterr().out
    assert sampled.tokens != ask(folder, drafter=None, max_new_tokens=24, temperature=1.0, seed=1).tokens
    assert ask(folder, **typical).tokens == ask(folder, drafter=None, max_new_tokens=24).tokens
    assert "lossy" not in capsys.readouterr().out  # greedy answers are exact
    for name in (None, "vispruner"):
        with pytest.raises(ValueError, match="acceptance is 'typical_lossy', but nothing drafts"):
            ask(folder, **typical | {"drafter": name})


def test_typical_acceptance_is_named_lossy_in_every_table(folder, tmp_path):
    settings = {
        "verifier": str(folder),
        "decoders": dict.fromkeys(("exact", "typical"), "token_recycling"),
        "num_prompts": 3,
        "speed_prompts": 1,
        "speed_repeats": 1,
        "max_new_tokens": 12,
        "num_threads": None,
        "device": "cpu",
    }
    lossy = {"acceptances": {"typical": "typical_lossy"}, "output": tmp_path / "results"}
    cells = benchmark(**settings, **lossy)
    assert [cell["is_lossy"] for cell in cells] == [False] * 5 + [True]
    assert [cell["exact"] for cell in cells] == [1.0] * 3 + [None] * 3
    assert cells[5]["mismatches"] is None
    assert cells[5]["acclen"] > 0
    for table in ("table.md", "paper_table.md", "paper_table.csv"):
        lines = (tmp_path / "results" / table).read_text().splitlines()
        assert {"typical", "typical (lossy)"} <= set(re.findall(r"typical[^|,]*\b\)?", "\n".join(lines)))
        assert not any("exact (lossy)" in line for line in lines)
    texts = {}
    for line in (tmp_path / "results" / "samples.jsonl").read_text().splitlines():
        record = json.loads(line)
        texts.setdefault((record["decoder"], record["temperature"]), []).append(record["tokens"])
    assert texts["exact", 1.0] == texts["autoregressive", 1.0] != texts["typical", 1.0]
    assert ("typical", 0.0) not in texts  # greedy answers are those of the exact decoder
    for decoders in ({}, {"typical": "vispruner"}):
        with pytest.raises(ValueError, match="acceptances names typical; the decoders that draft are"):
            benchmark(**settings | {"decoders": decoders | {"exact": "racer"}}, **lossy)


def test_chains_are_recorded_as_before(folder):
    answer = ask(folder, drafter=None)
    answer.rounds = [Round([1, 2], 1, 3, 0)]
    assert "parents" not in to_record(answer)


def test_pruned_verifiers_are_reported_as_lossy(folder, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("method: sparsevlm\nkeep: [0.3, 0.2, 0.1]\n")
    cells = benchmark(
        verifier=str(folder),
        decoders={"prompt_lookup": "prompt_lookup", "vispruner": "vispruner", "some": str(path)},
        num_prompts=3,
        speed_prompts=1,
        speed_repeats=1,
        max_new_tokens=6,
        temperatures=(0.0,),
        output=tmp_path / "results",
        num_threads=None,
        device="cpu",
    )
    assert [cell["is_lossy"] for cell in cells] == [False, False, True, True]
    for cell in cells:
        assert cell["score"] is not None
        assert cell["latency_s"] > 0
        assert cell["speedup"] > 0
    for cell in cells[2:]:
        names = ("acclen", "acclen_low", "mat", "rounds_per_token", "exact", "mismatches", "block_size")
        assert [cell[name] for name in names] == [None] * len(names)
        assert cell["answers"] == 3
        assert cell["rounds"] == 0
    table = (tmp_path / "results" / "table.md").read_text().splitlines()
    assert ["lossy" in line for line in table if "| some " in line or "| vispruner " in line] == [True, True]
    assert not any("lossy" in line for line in table if "autoregressive" in line)
    texts = {}
    for line in (tmp_path / "results" / "samples.jsonl").read_text().splitlines():
        record = json.loads(line)
        texts.setdefault(record["decoder"], []).append(record["tokens"])
    assert texts["autoregressive"] == texts["prompt_lookup"] != texts["some"]
