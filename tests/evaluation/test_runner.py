import csv
import json
import re

import pytest
import torch
from helpers import agreeing_drafter, save_backbone, tiny_backbone

from data_modules.synthetic.world import generate
from tiger.cli import main
from tiger.drafting.saving import save_drafter
from tiger.evaluation import decoders as decoders_module
from tiger.evaluation.prompts import load_prompts
from tiger.evaluation.runner import benchmark
from tiger.report.page import file_name

KEYS = {
    *(
        "decoder",
        "dataset",
        "temperature",
        "batch_size",
        "num_prompts",
        "acclen",
        "acclen_low",
        "acclen_high",
    ),
    *("p_accept_ge", "rounds_per_token", "tokens_per_second", "speedup", "latency_s", "other_share", "exact"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    verifier = tiny_backbone(layers=2)
    save_backbone(verifier, folder / "verifier")
    for name, noise in (("vanilla", 2.0), ("kd", 0.5), ("tiger", 0.0)):
        save_drafter(agreeing_drafter(verifier, noise), folder / name)
    return folder


def run(pair, output, **changes):
    settings = {
        "verifier": str(pair / "verifier"),
        "decoders": {name: str(pair / name) for name in ("vanilla", "kd", "tiger")},
        "num_prompts": 4,
        "speed_prompts": 2,
        "speed_repeats": 2,
        "block_size": 4,
        "block_sizes": {"kd@1": 3},
        "max_new_tokens": 12,
        "output": output,
        "num_threads": None,
        "device": "cpu",
    }
    return benchmark(**settings | changes)


@pytest.fixture(scope="module")
def done(pair, tmp_path_factory):
    torch.manual_seed(0)
    output = tmp_path_factory.mktemp("results")
    return run(pair, output), output


def test_cells_have_every_key(done):
    cells, output = done
    assert [(c["temperature"], c["decoder"]) for c in cells] == [
        (t, name) for t in (0.0, 1.0) for name in ("autoregressive", "vanilla", "kd", "tiger")
    ]
    assert all(cell.keys() >= KEYS for cell in cells)
    read = json.loads((output / "metrics.json").read_text())
    assert [cell["acclen"] for cell in read] == [cell["acclen"] for cell in cells]


def test_speed_is_measured_on_its_own_data_set(pair, tmp_path):
    settings = {"decoders": {"tiger": str(pair / "tiger")}, "temperatures": [0.0], "block_sizes": {}}
    cells = run(pair, tmp_path, speed_dataset="synthetic_long", speed_prompts=1, **settings)
    assert {(cell["dataset"], cell["speed_dataset"]) for cell in cells} == {("synthetic", "synthetic_long")}
    run(pair, tmp_path, speed_dataset="synthetic", speed_prompts=1, **settings)
    assert len({json.loads(line)["cell"] for line in (tmp_path / "timings.jsonl").open()}) == 2
    with pytest.raises(ValueError, match="speed_prompts is -1"):
        run(pair, tmp_path, speed_prompts=-1, **settings)


def test_long_prompts_ask_for_the_longest_answer():
    for prompt in load_prompts("synthetic_long", 6):
        _, kind, seed, turn = prompt.id.split("/")
        answers = [len(t.answer) for t in generate(int(seed), kind).turns]
        assert answers[int(turn)] == max(answers)


def test_traces_show_all_drafters_side_by_side(pair, tmp_path):
    settings = {"temperatures": [0.0], "block_sizes": {}, "speed_prompts": 0}
    drafters = {"tiger": str(pair / "tiger"), "lookup": "prompt_lookup"}
    run(pair, tmp_path, decoders=drafters, num_traces=2, **settings)
    page = (tmp_path / "traces.html").read_text()
    assert re.findall(r'"decoder": "(\w+)"', page) == ["tiger", "lookup"] * 2
    recorded = json.loads((tmp_path / "settings.json").read_text())
    assert recorded["arguments"]["decoders"] == drafters
    assert recorded["provenance"]["versions"]["tiger"]
    with pytest.raises(ValueError, match="No decoder has a drafter"):
        run(pair, tmp_path, decoders={}, num_traces=1, **settings)


def test_a_report_decodes_prompts_again_to_show_their_rounds(done, tmp_path):
    _, folder = done
    main(["report", str(folder), "-o", str(tmp_path), "--traces", "1"])
    page = (tmp_path / f"{file_name(folder.name)[:-5]}-rounds.html").read_text()
    assert re.findall(r'"decoder": "(\w+)"', page) == ["vanilla", "kd", "tiger"]
    assert 'href="index.html"' in page


def test_greedy_answers_are_the_verifiers_own(done):
    cells, _ = done
    assert [cell["exact"] for cell in cells] == [1.0] * 4 + [None] * 4


def test_values_are_plausible(done):
    cells, _ = done
    plain = cells[0]
    assert (plain["acclen"], plain["p_accept_ge"], plain["rounds_per_token"]) == (0, {}, 1)
    assert plain["speedup"] == 1
    for cell in cells:
        assert cell["acclen_low"] <= cell["acclen"] <= cell["acclen_high"]
        assert cell["tokens_per_second"] > 0
        assert 0 <= cell["other_share"] < 1
    by_name = {(cell["decoder"], cell["temperature"]): cell for cell in cells}
    assert by_name["tiger", 0]["acclen"] > by_name["vanilla", 0]["acclen"]
    assert max(by_name["kd", 1]["p_accept_ge"]) == 3
    assert by_name["kd", 1]["block_size"] == 3


def test_differences_and_tables(done):
    cells, output = done
    differences = json.loads((output / "differences.json").read_text())
    assert [(d["left"], d["right"], d["temperature"]) for d in differences] == [
        (left, right, t) for t in (0, 1) for left, right in (("kd", "vanilla"), ("tiger", "kd"))
    ]
    acclen = {(cell["decoder"], cell["temperature"]): cell["acclen"] for cell in cells}
    for d in differences:
        expected = acclen[d["left"], d["temperature"]] - acclen[d["right"], d["temperature"]]
        assert d["difference"] == pytest.approx(expected)
    rows = list(csv.DictReader((output / "table.csv").open()))
    assert float(rows[3]["acclen"]) == pytest.approx(cells[3]["acclen"])
    assert "| tiger | 0 | 1 |" in (output / "table.md").read_text()


def test_samples_hold_what_the_metrics_came_from(done):
    cells, output = done
    samples = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    mine = [s for s in samples if s["decoder"] == "tiger" and s["temperature"] == 0]
    assert len(mine) == 4
    accepted = [a for s in mine for a in s["accepted"]]
    assert sum(accepted) / len(accepted) == pytest.approx(cells[3]["acclen"])
    assert all(len(s["tokens"]) <= 12 and s["seconds"] > 0 for s in mine)


def test_finished_cells_are_read_back(done, pair, monkeypatch):
    cells, output = done

    def fail(self, *args):
        raise AssertionError("decoded again")

    monkeypatch.setattr(decoders_module.Decoders, "build", fail)
    assert json.dumps(run(pair, output)) == json.dumps(cells)


def test_only_what_is_missing_is_decoded(done, pair, tmp_path, monkeypatch):
    cells, output = done
    lines = (output / "samples.jsonl").read_text().splitlines(keepends=True)
    # The last cell lost one record, and the process died in the middle of a line.
    (tmp_path / "samples.jsonl").write_text("".join(lines[:-1]) + lines[-1][:40])
    built = []
    build = decoders_module.Decoders.build
    monkeypatch.setattr(
        decoders_module.Decoders, "build", lambda self, *a: built.append(a) or build(self, *a)
    )
    again = run(pair, tmp_path, speed_prompts=0)
    assert built == [("tiger", 1.0)]
    assert [cell["acclen"] for cell in again] == [cell["acclen"] for cell in cells]
    assert {cell["speedup"] for cell in again} == {None}


def test_answers_of_another_benchmark_are_taken_over(done, pair, tmp_path, monkeypatch, capsys):
    cells, output = done
    built = []
    build = decoders_module.Decoders.build
    monkeypatch.setattr(
        decoders_module.Decoders, "build", lambda self, *a: built.append(a) or build(self, *a)
    )
    decoders = {"same": str(pair / "tiger"), "vanilla": str(pair / "vanilla")}
    changes = {"decoders": decoders, "block_sizes": {"vanilla": 2}, "speed_prompts": 0}
    again = run(pair, tmp_path, answers_from=output, **changes)
    assert built == [("vanilla", 0.0), ("vanilla", 1.0)]  # it drafts otherwise than there
    taken = {(c["decoder"], c["temperature"]): c["acclen"] for c in cells}
    assert [c["acclen"] for c in again if c["decoder"] == "same"] == [taken["tiger", t] for t in (0.0, 1.0)]
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    lines = (output / "samples.jsonl").read_text().replace('"tokens"', '"no_tokens"', 1)
    (damaged / "samples.jsonl").write_text(lines)
    capsys.readouterr()
    run(pair, tmp_path / "other", answers_from=damaged, **changes)
    assert (
        "15 answers are taken from" in capsys.readouterr().out
    )  # of four prompts, two decoders, two temperatures
    built.clear()
    run(pair, tmp_path, **changes)  # its journal holds all of them
    assert not built
    with pytest.raises(FileNotFoundError, match=r"answers_from is .*none, which has no samples\.jsonl"):
        run(pair, tmp_path, answers_from=tmp_path / "none")


def test_a_retrained_drafter_is_decoded_again(done, pair, tmp_path, monkeypatch):
    _, output = done
    (tmp_path / "samples.jsonl").write_bytes((output / "samples.jsonl").read_bytes())
    monkeypatch.setattr(decoders_module, "fingerprint", lambda folder: ["changed"])
    run(
        pair,
        tmp_path,
        speed_prompts=0,
        temperatures=[0.0],
        decoders={"tiger": str(pair / "tiger")},
        block_sizes={},
    )
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 8 * 4 + 2 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoders": {"tiger": None}}, "all others need one"),
        ({"block_sizes": {"tigre": 4}}, "block_sizes names tigre"),
        ({"batch_sizes": [0]}, "must be one or more"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but torch sees"),
        ({"dataset": "imagenet"}, "Unknown data set 'imagenet'; choose one of synthetic"),
        ({"num_prompts": 0}, "num_prompts is 0"),
        ({"speed_repeats": 0}, "speed_repeats is 0"),
        ({"temperatures": []}, "temperatures is .*; name one value or more"),
        ({"temperatures": [0.0, 0.0]}, "each once"),
        ({"temperatures": [float("nan")]}, "out of range"),
        ({"batch_sizes": []}, "batch_sizes is .*; name one value or more"),
    ],
)
def test_errors_say_what_is_wrong(pair, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run(pair, tmp_path, **changes | {"block_sizes": changes.get("block_sizes", {})})
