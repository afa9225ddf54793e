"""Every shipped study can be read, planned and run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tiger.ablation.jobs import Planner, make_plan, once
from tiger.ablation.study import BASE, STUDIES, load_base, load_study, merge, study_names
from tiger.cli import main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / STUDIES
DOCS = ROOT / "docs/ablation.md"
PAPER = STUDIES / "qwen3_vl.yaml"


@pytest.fixture(scope="module")
def plans():
    return plans_of(BASE)


def plans_of(base):
    planner = Planner(load_base(ROOT / base), ROOT / base, Path("runs/ablation"))
    found = {}
    for name in study_names(FOLDER):
        study, cells = load_study(name, FOLDER)
        found[name] = make_plan(name, study, cells, planner, FOLDER / name)
    return found


def test_the_studies_of_the_paper_are_there(plans):
    assert set(plans) == {
        *("main_results", "components", "sparsity", "k_mismatch", "visual_interface", "selectors"),
        *("objectives", "routing_variants", "accepted_length", "temperature", "batch_size"),
        *("context_heavy", "capability", "gamma", "cost_model"),
    }


def test_each_cell_has_a_file_and_each_file_is_a_cell(plans):
    for name, plan in plans.items():
        files = {path.stem for path in (FOLDER / name).glob("*.yaml")} - {"study"}
        assert files == set(plan.cells), name


def test_rows_of_the_paper_stand_beside_a_cell_and_columns_beside_a_column(plans):
    for name, plan in plans.items():
        if plan.study.paper is None:
            continue
        labels = {cell.label for cell in plan.cells.values()}
        missing = {row["label"] for row in plan.study.paper["rows"]} - labels
        assert not missing or name in {"context_heavy"}, (name, missing)


def test_trainings_are_shared(plans):
    jobs = once(job for plan in plans.values() for job in plan.all_jobs)
    kinds = [job.folder.parent.name for job in jobs]
    assert (kinds.count("lessons"), kinds.count("trainings")) == (6, 40)
    assert kinds.count("answers") < kinds.count("benchmarks") / 4
    full = {plans[name].jobs[cell, 0].folder for name, cell in SHARED.items()}
    assert len(full) == 1
    assert plans["components"].seeds == (0, 1, 2)
    assert len({job.folder for job in plans["batch_size"].jobs.values()}) == 1


SHARED = {"components": "full", "sparsity": "k8", "routing_variants": "full_method", "objectives": "overlap"}


def test_seeds_differ_in_data_and_draws(plans):
    jobs = plans["components"].jobs
    first, second = (jobs["no_alignment", seed].needs[0].changes for seed in (0, 1))
    assert first["seed_everything"] != second["seed_everything"]
    assert first["model"]["init_args"]["seed"] != second["model"]["init_args"]["seed"]
    assert first["data"]["init_args"]["seed"] != second["data"]["init_args"]["seed"]


def test_every_job_has_a_config_that_its_verb_takes(plans, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    tried = set()
    for job in jobs_of_the_first_seed(plans):
        options = tuple(sorted(map(str, dict(job.changes).get("model", {}).get("init_args", {}))))
        recipe = job.words[2] if job.folder.parent.name == "trainings" else job.folder.parent.name
        if (recipe, options) in tried and recipe != "benchmarks":
            continue
        tried.add((recipe, options))
        assert_parses(job, tmp_path, capsys)
    assert len(tried) > 8


def test_the_papers_pair_has_a_config_for_every_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    plans = plans_of(PAPER)
    shipped = load_base(ROOT / PAPER)
    assert shipped.trainings.keys() == load_base(ROOT / BASE).trainings.keys()
    assert shipped.sets.keys() == load_base(ROOT / BASE).sets.keys()
    jobs = jobs_of_the_first_seed(plans)
    recipes = {job.words[2]: job for job in jobs if job.folder.parent.name == "trainings"}
    assert len(recipes) == len(shipped.trainings)
    for job in recipes.values():
        assert_parses(job, tmp_path, capsys)


def jobs_of_the_first_seed(plans):
    jobs = (one for plan in plans.values() for (_, seed), one in plan.jobs.items() if not seed)
    return once(job for one in jobs for job in one.all())


def assert_parses(job, tmp_path, capsys):
    changes = tmp_path / "changes.yaml"
    changes.write_text(yaml.safe_dump(dict(job.changes)))
    words = [str(changes) if word.endswith("changes.yaml") else word for word in job.words]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--print_config"])
    assert stop.value.code == 0, (job.name, capsys.readouterr().err)


def test_options_of_sets_go_to_the_benchmarks_that_read_them():
    base = load_base(ROOT / BASE)
    sets = {"synthetic_long": {"judge": None}, "synthetic_sign": {"judge": None}}
    base = replace(base, benchmark=base.benchmark | {"set_options": sets})
    planner = Planner(base, ROOT / BASE, Path("runs/ablation"))
    plan = make_plan("sparsity", *load_study("sparsity", FOLDER), planner, FOLDER / "sparsity")
    job = plan.jobs["k8", 0]
    answers = next(need for need in job.needs if need.folder.parent.name == "answers")
    assert job.changes["set_options"].keys() == {"synthetic_long"}
    assert not answers.changes["set_options"]


def test_an_unknown_study_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no study 'sparse'.*sparsity"):
        load_study("sparse", FOLDER)


def test_a_cell_that_cannot_be_read_is_named(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "study.yaml").write_text("{title: a, question: b, cells: [c], columns: [{key: acclen}]}")
    with pytest.raises(FileNotFoundError, match=r"c\.yaml"):
        load_study("toy", tmp_path)
    for content in ("label: x\ntrainigs: [kd]\n", "label: [1\n", "x: 3\n", "label: a\nx: many\n"):
        (folder / "c.yaml").write_text(content)
        with pytest.raises(ValueError, match=r"c\.yaml is no cell"):
            load_study("toy", tmp_path)


def test_the_documented_study_can_be_planned(tmp_path):
    text = re.search(r"```yaml\n(# configs/ablation/my_study.*?)```", DOCS.read_text(), re.DOTALL)[1]
    folder = tmp_path / "my_study"
    folder.mkdir()
    for part in re.split(r"# configs/ablation/my_study/", text)[1:]:
        name, _, content = part.partition("\n")
        (folder / name).write_text(content)
    (folder / "one.yaml").write_text("label: One\n")
    planner = Planner(load_base(ROOT / BASE), ROOT / BASE, tmp_path)
    plan = make_plan("my_study", *load_study("my_study", tmp_path), planner, folder)
    one, half = plan.jobs["one", 0], plan.jobs["half", 0]
    assert one.needs[0].folder == half.needs[0].folder
    assert half.view[1] == {"draft_temperature": 0.5}


def test_a_contrast_of_unknown_cells_is_refused(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "c.yaml").write_text("label: x\n")
    text = "{title: a, question: b, cells: [c], columns: [{key: acclen}], "
    text += "contrasts: [{left: c, right: d, label: e}]}"
    (folder / "study.yaml").write_text(text)
    with pytest.raises(ValueError, match="compares 'c' and 'd'"):
        load_study("toy", tmp_path)


def test_merge():
    assert merge({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2], "d": 3}}) == {"a": {"b": 1, "c": [2], "d": 3}}
