"""The benchmark on several sets: scores, subsets, the paper's tables, resuming, processes."""

import csv
import json
from pathlib import Path

import pytest
import torch
from ranks import spawn
from sets_world import settings

from data_modules.evaluation import SetOptions, load_set
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.evaluation.runner import benchmark

ROOT = Path(__file__).resolve().parents[2]


def test_every_cell_is_there(done):
    cells, _ = done
    assert [(c["dataset"], c["batch_size"], c["decoder"]) for c in cells] == [
        (name, size, decoder)
        for name in ("pope", "scienceqa", "pope@speed")
        for size in (1, 2)
        for decoder in ("autoregressive", "tiger")
    ]
    assert {(c["dataset"], c["num_prompts"]) for c in cells} == {
        *(("pope", 4), ("scienceqa", 1), ("pope@speed", 4))
    }
    assert all((c["exact"], c["ties"], c["mismatches"]) == (1, [], []) for c in cells)


def test_scores_come_from_the_texts(done, world):
    cells, output = done
    samples = [json.loads(line) for line in (output / "samples.jsonl").open()]
    tasks = load_set("pope", options=SetOptions(path=world / "pope"))
    own = {s["id"]: s for s in samples if s["dataset"] == "pope" and s["decoder"] == "tiger"}
    metric = tasks.metrics()[0]
    points = [
        metric.score(own[prompt_id]["text"], reference)
        for prompt_id, reference in zip(tasks.prompt_ids, tasks.references, strict=True)
    ]
    assert [own[prompt_id]["score"] for prompt_id in tasks.prompt_ids] == points
    cell = cells[1]
    assert (cell["metric"], cell["score"]) == ("accuracy", pytest.approx(sum(points) / 4))
    assert cell["score_low"] <= cell["score"] <= cell["score_high"]
    assert {"precision", "recall", "f1", "yes_ratio", "accuracy/random"} <= set(cell["scores"])
    speed = next(c for c in cells if c["dataset"] == "pope@speed")
    assert (speed["style"], speed["metric"], speed["score"]) == ("speed", None, None)
    assert all(s["score"] is None for s in samples if s["dataset"] == "pope@speed")


def test_latencies_are_normalised(done):
    cells, _ = done
    for plain, tiger in zip(cells[::2], cells[1::2], strict=True):
        assert (plain["latency_ar_normalized"], tiger["latency_full_token_normalized"]) == (1, 1)
        assert tiger["latency_ar_normalized"] == pytest.approx(1 / tiger["speedup"])
        assert plain["latency_full_token_normalized"] == pytest.approx(tiger["speedup"])
        assert plain["peak_memory_gib"] is None or torch.cuda.is_available()


def test_a_missing_full_token_decoder_leaves_its_column_empty(world, tmp_path):
    changes = {"dataset": "pope", "set_options": {"pope": SetOptions(path=world / "pope")}}
    cells = benchmark(**settings(world, tmp_path, full_token_decoder="vanilla", **changes))
    assert {cell["latency_full_token_normalized"] for cell in cells} == {None}


def test_subsets_are_recorded(done):
    _, output = done
    subsets = json.loads((output / "subsets.json").read_text())
    assert sorted(subsets["pope"]["ids"]) == ["0", "1", "2", "3"]
    assert subsets["scienceqa"]["skipped"] == {"no_image": ["1"]}
    assert subsets["pope@speed"]["style"] == "speed"


def test_tables_in_the_papers_layout(done):
    cells, output = done
    text = (output / "paper_table.md").read_text()
    assert text.count("## T = 0, batch size") == 2
    header = "| Method | pope AccLen | pope Spd. | pope Acc. | scienceqa AccLen |"
    assert header in text
    assert f"| tiger | {cells[1]['acclen']:.2f} | {cells[1]['speedup']:.2f}x |" in text
    assert "| autoregressive | – | 1.00x |" in text
    rows = list(csv.DictReader((output / "paper_table.csv").open()))
    assert [(row["T"], row["Batch"], row["Method"]) for row in rows] == [
        ("0", size, name) for size in "12" for name in ("autoregressive", "tiger")
    ]
    assert float(rows[1]["pope VerRds."]) == pytest.approx(cells[1]["rounds_per_token"], abs=1e-3)
    assert rows[1]["pope@speed Acc."] == "–"
    assert "## scienceqa" in (output / "table.md").read_text()


def test_a_partial_cell_goes_on_at_the_sample(done, world, tmp_path, monkeypatch):
    _, output = done
    lines = (output / "samples.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["dataset"] != "pope@speed"]
    # Of the cell of pope and tiger two of four answers are left, the second cut in its middle.
    mine = [line for line in kept if json.loads(line)["dataset"] == "pope" and "tiger" in line]
    kept = [line for line in kept if line not in mine]
    (tmp_path / "samples.jsonl").write_text("".join(kept) + mine[0] + mine[1][:50])
    decoded = []
    plain = SpeculativeDecoder.generate

    def spy(self, prompts, listener=None):
        decoded.extend(prompt.id for prompt in prompts)
        return plain(self, prompts, listener)

    monkeypatch.setattr(SpeculativeDecoder, "generate", spy)
    options = settings(world, tmp_path, dataset=["pope", "scienceqa"], speed_prompts=0)
    del options["set_options"]["pope@speed"]
    cells = benchmark(**options)
    assert sorted(decoded) == sorted(json.loads(line)["id"] for line in mine[1:])
    assert [c["acclen"] for c in cells[:4]] == [c["acclen"] for c in done[0][:4]]
    records = [json.loads(line) for line in (tmp_path / "samples.jsonl").open() if line.endswith("}\n")]
    assert len({(r["cell"], r["id"]) for r in records}) == len(records) == 2 * 4 + 2 * 1


@pytest.mark.dist
def test_two_processes_equal_one(done, world, tmp_path):
    cells, output = done
    options = {
        "verifier": str(world / "verifier"),
        "decoders": json.dumps({"tiger": str(world / "tiger")}),
        "dataset": '["pope", "scienceqa", "pope@speed"]',
        "num_prompts": "null",
        "set_options": json.dumps(
            {
                "pope": {"path": str(world / "pope")},
                "pope@speed": {"path": str(world / "pope")},
                "scienceqa": {"path": str(world / "science")},
            }
        ),
        "temperatures": "[0.0]",
        "batch_sizes": "[1, 2]",
        "block_size": "3",
        "max_new_tokens": "8",
        "acceptance_batch_size": "3",
        "speed_prompts": "0",
        "output": str(tmp_path),
        "num_threads": "null",
        "device": "cpu",
    }
    spawn(["-m", "tiger", "benchmark", *(f"--{name}={value}" for name, value in options.items())])
    assert [path.name for path in tmp_path.glob("samples*")] == ["samples.jsonl"]
    together = json.loads((tmp_path / "metrics.json").read_text())
    timed = {name for name, value in together[0].items() if value is None} | {"speed_dataset"}
    for alone, shared in zip(json.loads(json.dumps(cells)), together, strict=True):
        assert {k: v for k, v in shared.items() if k not in timed} == {
            k: v for k, v in alone.items() if k not in timed
        }

    def texts(folder):
        rows = map(json.loads, (folder / "samples.jsonl").open())
        return {(row["cell"], row["id"]): (row["tokens"], row["accepted"]) for row in rows}

    assert texts(tmp_path) == texts(output)
