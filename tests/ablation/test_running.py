"""Jobs: needs, places, failures, what is skipped, and a whole study of the tiny pair."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

import tiger
from tiger.ablation import running, verb
from tiger.ablation.jobs import FINISHED, Job
from tiger.ablation.running import (
    PROCESSES,
    Outcomes,
    default_workers,
    run,
    start_process,
    starter,
    view_drafter,
)
from tiger.ablation.study import BASE, STUDIES
from tiger.cli import main
from tiger.drafting.saving import load_drafter

ROOT = Path(__file__).parents[2]


class Done:
    """A job that has ended with a status after some polls."""

    def __init__(self, status, polls=1):
        self.status, self.polls = status, polls

    def poll(self):
        self.polls -= 1
        return None if self.polls > 0 else self.status

    def terminate(self):
        self.status = -15


def job(tmp_path, name, needs=(), alone=False):
    return Job(tmp_path / "trainings" / name, ("fit",), {}, tuple(needs), 1.0, alone)


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(running, "POLL", 0.0)


def test_needs_come_first_and_what_is_timed_runs_alone(tmp_path):
    first, second = job(tmp_path, "a"), job(tmp_path, "b")
    third, timed = job(tmp_path, "c", [first]), job(tmp_path, "t", [first], alone=True)
    beside = {}
    active = {}

    def start(started, place):
        beside[started.folder.name] = sorted(active)
        active[started.folder.name] = place
        handle = Done(0, 3)
        whole = handle.poll

        def poll():
            if (status := whole()) is not None:
                del active[started.folder.name]
            return status

        handle.poll = poll
        return handle

    run([timed, first, second, third], start, 2, Outcomes())
    assert beside["b"] == ["a"]
    assert beside["t"] == []
    assert list(beside)[-1] == "t"
    assert all((one.folder / FINISHED).is_file() for one in (first, second, third, timed))


def test_a_failure_stops_only_what_needs_it(tmp_path, capsys):
    bad, good = job(tmp_path, "bad"), job(tmp_path, "good")
    hopeless = job(tmp_path, "hopeless", [bad])
    after = job(tmp_path, "after", [hopeless])
    outcomes, seen = Outcomes(), []

    def start(started, place):
        started.log.write_text("one\nTHE REASON\n")
        return Done(1 if started is bad else 0)

    run([bad, hopeless, after, good], start, 1, outcomes, seen.append)
    assert outcomes.status(good) == "finished"
    assert [outcomes.status(one) for one in (bad, hopeless, after)] == ["failed"] * 3
    assert {one.folder for one in seen} == {one.folder for one in (bad, hopeless, after, good)}
    assert "THE REASON" in capsys.readouterr().out
    run([bad, good], lambda *_: Done(0), 1, Outcomes())  # only the failed one runs again
    assert bad.is_finished


def test_running_jobs_are_ended_when_the_run_is_stopped(tmp_path):
    handle = Done(0, 10)

    def start(started, place):
        if place:
            raise KeyboardInterrupt
        return handle

    with pytest.raises(KeyboardInterrupt):
        run([job(tmp_path, "a"), job(tmp_path, "b")], start, 2, Outcomes())
    assert handle.status == -15


DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); open('on', 'w').close(); time.sleep(60)"


def test_a_program_that_ignores_a_request_is_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = running.Process(PROCESSES.Process(target=exec, args=(DEAF,)))
    process.process.start()
    while not Path("on").exists():
        assert process.poll() is None
    process.terminate()
    process.process.join(10)
    assert process.poll() == -9


def test_processes_run_tiger_and_write_logs(tmp_path):
    one, bad = job(tmp_path, "a"), job(tmp_path, "bad")
    one, bad = replace(one, words=("--version",)), replace(bad, words=("no-such-verb",))
    outcomes = Outcomes()
    run([one, bad], starter("processes", tmp_path, {}), 2, outcomes)
    assert one.is_finished
    assert one.log.read_text() == f"tiger {tiger.__version__}\n"
    assert outcomes.failed == {bad.folder: f"exit status 2, see {bad.log}"}
    assert "unknown verb 'no-such-verb'" in bad.log.read_text()


def test_a_job_has_a_gpu_of_its_own_and_the_environment_of_now(tmp_path, monkeypatch):
    monkeypatch.setattr(running.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TIGER_TEST", "now")
    monkeypatch.setattr(running, "run_tiger", show_environment)
    one = job(tmp_path, "a")
    one.folder.mkdir(parents=True)
    start_process(one, 3).process.join()
    assert one.log.read_text() == "1 now"
    assert default_workers() == 2


def show_environment(words, log, environment):
    Path(log).write_text(f"{environment['CUDA_VISIBLE_DEVICES']} {environment['TIGER_TEST']}")


PARENT = """
import os, time
from tiger.ablation import running
if __name__ == "__main__":
    job = running.PROCESSES.Process(target=running.run_tiger, args=(("benchmark",), "log", dict(os.environ)))
    job.start()
    print(job.pid, flush=True)
    time.sleep(600)
"""


def test_a_job_ends_with_a_run_that_was_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "parent.py"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        while not (tmp_path / "runs/benchmark/settings.json").exists():  # the benchmark is under way
            assert process.poll() is None
            assert not has_ended(child)
        process.kill()
    deadline = time.monotonic() + 20
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def has_ended(number):
    stat = Path(f"/proc/{number}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_submitit_runs_jobs(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    good, bad = job(tmp_path, "good"), job(tmp_path, "bad")
    shown = {good.folder: "print('hello')", bad.folder: "raise SystemExit(3)"}
    monkeypatch.setattr(running, "command", lambda one: [sys.executable, "-c", shown[one.folder]])
    monkeypatch.setattr(running, "POLL", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    outcomes = Outcomes()
    run([good, bad], starter("local", tmp_path, {"timeout_min": 2}), 2, outcomes)
    assert good.log.read_text() == "hello\n"
    assert outcomes.failed == {bad.folder: f"exit status 3, see {bad.log}"}


def test_a_view_shows_a_drafter_with_other_settings(tmp_path):
    view_drafter(Path("tiny/tiger"), tmp_path / "drafter", {"num_routed": 4})
    drafter = load_drafter(str(tmp_path / "drafter"))
    assert (drafter.num_routed, drafter.draft_temperature) == (4, 0.3154)
    with pytest.raises(FileNotFoundError, match="routed drafter"):
        view_drafter(Path("tiny/vanilla"), tmp_path / "other", {"num_routed": 4})


TOY_KD = """
extends: {root}/configs/experiment/tiny_kd.yaml
model:
  init_args: {{verifier_dtype: float32, num_anchors: 1, decay_steps: 0}}
data:
  init_args: {{num_train: 6, num_validation: 0, batch_size: 2, max_new_tokens: 4, cache_dir: {folder}/cache}}
trainer: {{max_steps: 2, limit_val_batches: 0, val_check_interval: null}}
"""
TOY_BASE = """
pair: tiny
trainings: {kd: {config: kd.yaml, seconds_per_step: 1, lessons: true}}
drafters: {tiger: tiny/tiger}
sets: {}
benchmark:
  num_prompts: 2
  temperatures: [0.0]
  max_new_tokens: 4
  speed_prompts: 1
  speed_repeats: 1
"""
TOY_STUDY = """
title: A toy
question: Does it run?
cells: [k4, k8, broken]
columns: [{key: acclen}, {key: speedup}]
contrasts: [{left: k4, right: k8, label: K}]
trainings: [kd]
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "studies" / "toy"
    folder.mkdir(parents=True)
    (tmp_path / "kd.yaml").write_text(TOY_KD.format(root=ROOT, folder=tmp_path))
    (tmp_path / "base.yaml").write_text(TOY_BASE)
    (folder / "study.yaml").write_text(TOY_STUDY)
    (folder / "k4.yaml").write_text("label: K = 4\ntrainings: [{kd: {num_routed: 4}}]\n")
    (folder / "k8.yaml").write_text("label: K = 8\ninfer: {num_routed: 6}\n")
    (folder / "broken.yaml").write_text("label: Broken\ntrainings: [{kd: {num_routed: -1}}]\n")
    return ["ablate", "toy", "--base=base.yaml", "--studies=studies", "--output=out"]


def in_this_process(started):
    """A way to start jobs that spares the imports of a program."""

    def start(one, place):
        started.append(one.folder.name)
        with one.log.open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                main(list(one.words))
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
                return Done(1)
        return Done(0)

    return start


def test_a_study_runs_end_to_end_and_again(toy, tmp_path, monkeypatch, capsys):
    assert main([*toy, "--dry_run"]) == []
    shown = capsys.readouterr().out
    assert "trainings: 3, 3 to run" in shown
    assert not (tmp_path / "out").exists()

    started = []
    monkeypatch.setattr(verb, "starter", lambda *_: in_this_process(started))
    with pytest.raises(RuntimeError, match="2 jobs have no result"):
        main(toy)
    assert len(started) == 7  # lessons, three trainings, the verifier's answers, two benchmarks
    metrics = json.loads((tmp_path / "out/toy/metrics.json").read_text())
    by_name = {cell["name"]: cell for cell in metrics["cells"]}
    assert {name: cell["status"] for name, cell in by_name.items()} == {
        **dict.fromkeys(("k4", "k8"), "finished"),
        "broken": "failed",
    }
    assert "num_routed is -1" in Path(by_name["broken"]["log"]).read_text()
    assert by_name["k4"]["values"]["acclen"]["interval"] == "bootstrap"
    assert by_name["k4"]["values"]["speedup"]["mean"] > 0
    assert metrics["contrasts"][0]["interval"] == "bootstrap"
    assert metrics["provenance"]["versions"]["torch"]
    assert "Broken (failed)" in (tmp_path / "out/toy/table.md").read_text()

    started.clear()
    with pytest.raises(RuntimeError):
        main(toy)
    assert len(started) == 1  # the broken training only


@pytest.mark.slow
def test_a_killed_training_goes_on(toy, tmp_path):
    (tmp_path / "studies/toy/study.yaml").write_text(TOY_STUDY.replace(", broken", ""))
    text = (tmp_path / "kd.yaml").read_text().replace("max_steps: 2", "max_steps: 160")
    (tmp_path / "kd.yaml").write_text(text)
    words = [sys.executable, "-m", "tiger", *toy]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, start_new_session=True)
    while not (found := list(tmp_path.glob("out/trainings/*/checkpoints/last.ckpt"))):
        assert process.poll() is None
    os.killpg(process.pid, 9)
    process.wait()
    assert not (found[0].parents[1] / FINISHED).exists()
    assert subprocess.run(words, cwd=tmp_path, env=environment).returncode == 0
    record = json.loads((found[0].parents[1] / "provenance.json").read_text())
    assert len(record["earlier"]) == 1
    notes = json.loads((found[0].parents[1] / "drafter" / "drafter.json").read_text())
    assert notes["step"] == 160


def test_two_runs_do_not_share_a_folder(toy, tmp_path):
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / "lock"), pytest.raises(ValueError, match="Another ablation writes to"):
        main(toy)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_run_in_order(toy, tmp_path, monkeypatch, number):
    def start(one, place):
        os.kill(os.getpid(), number)
        return Done(0, 10)

    monkeypatch.setattr(verb, "starter", lambda *_: start)
    with pytest.raises(SystemExit) as stop:
        main(toy)
    assert stop.value.code == 128 + number
    assert (tmp_path / "out/toy/metrics.json").is_file()
    assert signal.getsignal(number) == signal.SIG_DFL


def test_options_are_checked(toy, tmp_path):
    with pytest.raises(ValueError, match="workers is 0"):
        main([*toy, "--workers=0"])
    for seeds in ("[0, 0]", "[]"):
        with pytest.raises(ValueError, match="give one or more, each once"):
            main([*toy, f"--seeds={seeds}"])
    cell = tmp_path / "studies/toy/k8.yaml"
    cell.write_text("label: K = 8\ninfer: {num_routd: 6}\n")
    with pytest.raises(
        ValueError, match=r"k8\.yaml: infer sets num_routd; a drafter's settings are .*num_routed"
    ):
        main(toy)
    study = tmp_path / "studies/toy/study.yaml"
    study.write_text(TOY_STUDY + "plot: {kind: bars, x: label, y: acclem}\n")
    with pytest.raises(ValueError, match="the plot shows 'acclem'; columns are acclen, speedup"):
        main(toy)


def test_the_command_of_a_study_names_what_is_not_usual():
    seeds = [0, 1]
    assert verb._command("gamma", BASE, STUDIES, verb.OUTPUT, None) == "make ablation STUDY=gamma"
    found = verb._command("gamma", Path("my.yaml"), STUDIES, Path("out"), seeds)
    assert found == "python -m tiger ablate gamma --base my.yaml --output out --seeds '[0, 1]'"


NO_GUARD = """
import os
from pathlib import Path
from tiger.ablation.jobs import Job
from tiger.ablation.running import Outcomes, run, start_process
outcomes = Outcomes()
job = Job(Path("out/trainings/a"), ("--version",), {})
run([job], start_process, 1, outcomes)
print(outcomes.failed)
"""


def test_a_script_without_a_guard_runs_jobs_and_closed_outputs_do_no_harm(tmp_path):
    (tmp_path / "script.py").write_text(NO_GUARD)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = f"exec {sys.executable} script.py >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert (tmp_path / "out/trainings/a" / FINISHED).is_file(), done.stderr
    assert (tmp_path / "out/trainings/a/log.txt").read_text() == f"tiger {tiger.__version__}\n"
