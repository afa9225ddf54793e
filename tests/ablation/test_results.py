"""Figures of a study: intervals over seeds, the cost model, tables."""

import json

import pytest
from scipy import stats

from tiger.ablation.jobs import FINISHED, Job, Plan
from tiger.ablation.results import STUDENT, collect, student_interval, table, write_study
from tiger.ablation.running import Outcomes
from tiger.ablation.study import Base, Cell, Column, Contrast, Study
from tiger.evaluation.cost_model import with_predictions

BASE = Base("toy", {}, {}, {"ocr": "synthetic_sign"}, {})
RECORD = {
    "git": {"commit": "a" * 40, "dirty": False},
    "versions": {"torch": "2"},
    "hardware": {"cpus": 2, "gpus": [], "platform": "Linux"},
}


def entry(acclen, **changes):
    row = {"decoder": "drafter", "dataset": "synthetic", "temperature": 0.0, "batch_size": 1}
    row |= {"acclen": acclen, "acclen_low": acclen - 1, "acclen_high": acclen + 1, "speedup": 2.0}
    row |= {"p_accept_ge": {"2": 0.5}, "phase_ms": None, "num_prompts": 80}
    return row | changes


def finished(folder, entries):
    folder.mkdir(parents=True)
    (folder / FINISHED).write_text(json.dumps({"finished": "2026-01-01T00:01:00+00:00", "seconds": 60}))
    (folder / "settings.json").write_text(json.dumps({"provenance": RECORD}))
    (folder / "metrics.json").write_text(json.dumps(entries))
    return Job(folder, ("benchmark",), {})


def plan_of(tmp_path, cells, seeds, columns, **study):
    jobs = {
        (name, seed): finished(tmp_path / "benchmarks" / f"{name}{seed}-{seed}", entries)
        for name, runs in cells.items()
        for seed, entries in zip(seeds, runs, strict=True)
    }
    labels = {name: Cell(f"cell {name}") for name in cells}
    made = Study("Title", "Why?", list(cells), columns, **study)
    return Plan("toy", made, labels, seeds, jobs)


def test_quantiles_are_those_of_student():
    for degrees, quantile in enumerate(STUDENT, start=1):
        assert quantile == pytest.approx(stats.t.ppf(0.975, degrees), abs=6e-4)


def test_interval_of_three_seeds_by_hand():
    # Mean 4, standard deviation 1: 4.303 / sqrt(3) on either side.
    assert student_interval([3.0, 4.0, 5.0]) == pytest.approx((4.0, 1.5157, 6.4843), abs=1e-4)
    with pytest.raises(ValueError, match="two or more"):
        student_interval([1.0])


def test_seeds_are_merged_and_paired(tmp_path):
    cells = {"a": [[entry(x)] for x in (5, 6, 7)], "b": [[entry(x)] for x in (4, 5.5, 5)]}
    contrasts = [Contrast("a", "b", "routing")]
    plan = plan_of(tmp_path, cells, (0, 1, 2), [Column("acclen")], contrasts=contrasts)
    metrics = collect(plan, BASE, Outcomes(), RECORD, "make it")
    value = metrics["cells"][0]["values"]["acclen"]
    assert (value["mean"], value["seeds"], value["interval"]) == (6, [5, 6, 7], "seeds")
    assert value["low"] == pytest.approx(6 - 4.303 / 3**0.5)
    (difference,) = metrics["contrasts"]
    spread = stats.t.ppf(0.975, 2) * stats.tstd([1, 0.5, 2]) / 3**0.5
    assert difference["mean"] == pytest.approx(3.5 / 3)
    assert difference["high"] - difference["mean"] == pytest.approx(spread, rel=1e-3)
    assert [e["seed"] for e in metrics["cells"][0]["entries"]] == [0, 1, 2]
    assert metrics["provenance"]["hardware"] == "2 CPU cores, no GPU, Linux"
    assert metrics["provenance"]["started"] == "2026-01-01T00:00:00+00:00"
    assert metrics["provenance"]["commit"] == "a" * 40


def test_one_seed_keeps_the_interval_of_the_benchmark(tmp_path):
    columns = [
        Column("acclen", scale=10.0),
        Column("speedup"),
        Column("ge2", value="p_accept_ge.2"),
        Column("ocr", value="acclen", where={"dataset": "ocr"}),
        Column("none", value="acclen", where={"temperature": 0.3}),
        Column("relative", value="speedup", relative_to="b"),
    ]
    runs = {"a": [[entry(5), entry(3, dataset="synthetic_sign")]], "b": [[entry(4, speedup=4.0)]]}
    metrics = collect(plan_of(tmp_path, runs, (0,), columns), BASE, Outcomes(), RECORD, "make it")
    values = metrics["cells"][0]["values"]
    assert values["acclen"] == {"mean": 50, "low": 40, "high": 60, "seeds": [50], "interval": "bootstrap"}
    assert (values["speedup"]["low"], values["speedup"]["interval"]) == (None, None)
    assert (values["ge2"]["mean"], values["ocr"]["mean"], values["none"]["mean"]) == (0.5, 3, None)
    assert values["relative"]["mean"] == 0.5


def test_table_shows_the_paper_beside_ours_and_what_failed(tmp_path):
    paper = {"source": "Table 4", "pair": "a pair"}
    paper["rows"] = [
        {"label": "cell a", "values": {"AccLen": 4.2, "Other": 1}},
        {"label": "elsewhere", "values": {"AccLen": 9}},
    ]
    plan = plan_of(tmp_path, {"a": [[entry(5)]], "b": [[entry(4)]]}, (0,), [Column("acclen")], paper=paper)
    broken = plan.jobs["b", 0]
    (broken.folder / FINISHED).unlink()
    outcomes = Outcomes(failed={broken.folder: "exit status 1"})
    metrics = collect(plan, BASE, outcomes, RECORD, "make it")
    assert [cell["status"] for cell in metrics["cells"]] == ["finished", "failed"]
    text = table(metrics)
    assert "| cell a | 5.00 [4.00, 6.00] | 4.2 | 1 |" in text
    assert "| cell b (failed) | – | – | – |" in text
    assert "| elsewhere | – | 9.0 | – |" in text
    assert str(broken.log) in text
    write_study(tmp_path / "toy", metrics)
    assert json.loads((tmp_path / "toy" / "metrics.json").read_text())["study"] == "toy"


def test_cost_model_by_hand():
    # 91 tokens in a second; 100 ms to the first token, then rounds of 20 ms with 2 + 1 tokens each.
    plain = entry(0, decoder="autoregressive", latency_s=1.0, tokens_per_second=91.0)
    drafter = entry(2, phase_ms={"draft": 8.0, "verify": 12.0}, latency_s=0.7, first_token_s=0.1)
    _, found = with_predictions([plain, drafter | {"speedup": 1.25}])
    assert found["predicted_speedup"] == pytest.approx(1.0 / (0.1 + 30 * 0.02))
    assert found["predicted_speedup_paper"] == pytest.approx(1.0 / (0.1 + 45 * 0.02))
    assert found["predicted_over_measured"] == pytest.approx(1 / 0.7 / 1.25)
    assert with_predictions([entry(2)])[0]["predicted_speedup"] is None
