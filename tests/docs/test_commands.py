"""Every command and example of README and docs runs, or at least parses; an unknown one fails."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request

import av
import numpy as np
import pytest
from documented import OTHERS, PAGES, ROOT, blocks, commands, options, reason
from PIL import Image

from tiger.cli import main

ALL = [(page, words) for page in PAGES for words in commands(page)]
PARSED = {" ".join(found): found for _, words in ALL if (found := options(words))}
FOLDERS = ("configs", "docs", "benchmarks")
STEP = "{class_path: ModelCheckpoint, init_args: {every_n_train_steps: 1, save_last: true}}"
TINY_DATA = [
    "--data.init_args.num_validation=2",
    "--data.init_args.num_test=2",
    "--data.init_args.batch_size=2",
]
FIT = ["--trainer.max_steps=1", "--trainer.val_check_interval=1", f"--trainer.callbacks+={STEP}"]
SMALL = {
    "fit": [*FIT, "--trainer.enable_progress_bar=false", "--model.init_args.verifier_dtype=float32"],
    "benchmark": ["--num_prompts=2", "--speed_prompts=1", "--speed_repeats=1"],
    "data cache-teacher": ["--model.init_args.verifier_dtype=float32", "--trainer.max_steps=1"],
    "data preview": ["--model.init_args.verifier_dtype=float32"],
    "ablate": ["--dry_run"],
}
COUNTS = {"llava": 16, "textvqa": 2, "scienceqa": 2, "docvqa": 2, "tallyqa": 2, "chartqa": 2}
# What a page's commands need from another page, made by the commands of that one.
BEFORE = {
    "training_heads.md": ["fit --config configs/experiment/tiny_eagle3.yaml"],
    "howto_export.md": [
        "benchmark --config configs/experiment/tiny_benchmark.yaml --output runs/benchmark",
    ],
    "report.md": [
        "benchmark --config configs/experiment/tiny_benchmark.yaml --output runs/compare",
        "benchmark --config configs/experiment/tiny_benchmark.yaml --output runs/tiny_benchmark",
        "fit --config configs/experiment/tiny_kd.yaml",
        "fit --config configs/experiment/tiny_align.yaml",
    ],
}
RUN_HERE = {page for page, words in ALL if options(words) and not reason(words)} - {ROOT / "README.md"}
# Examples that need what only a reader has.
PYTHON_NOT_RUN = {"methods.md": "a trained head and held-out texts"}


def name_of(words):
    return " ".join(words[:2]) if words[0] == "data" else words[0]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A folder that looks like the repository, in which commands leave their files."""
    for name in FOLDERS:
        (tmp_path / name).symlink_to(ROOT / name)
    # A copy, as commands write there; stage 2 starts from what the commands before it left.
    shutil.copytree(ROOT / "tiger/pairs/tiny/tiger", tmp_path / "runs/tiny_align/drafter")
    for name in ("photo.jpg", "before.png", "after.png"):
        Image.open(ROOT / "docs/images/example.png").convert("RGB").save(tmp_path / name)
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        container.mux([*stream.encode(frame), *stream.encode()])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_is_known():
    others = [" ".join(words) for _, words in ALL if options(words) is None]
    assert [line for line in others if not line.startswith(tuple(OTHERS))] == []
    assert [start for start in OTHERS if not any(line.startswith(start) for line in others)] == []
    assert len(PARSED) > 30


# Verbs that read what is there print no config.
@pytest.mark.parametrize(
    "line", [line for line in PARSED if not re.match("(data (report|verify)|report) ", line)]
)
def test_a_command_parses(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    for variable in re.findall(r"\$\w+", line):
        monkeypatch.setenv(variable[1:], "2")
    words = ["2" if word.startswith("$") else word for word in PARSED[line]]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--print_config"])
    assert stop.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize("line", [line for line in PARSED if line.startswith("report ")])
def test_a_report_command_parses(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="runs/"):  # there are no results here
        main(PARSED[line])


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name != "README.md"],
    ids=lambda p: p.stem,
)
def test_python_examples(page, workspace):
    if page.name in PYTHON_NOT_RUN:
        pytest.skip(PYTHON_NOT_RUN[page.name])
    names = {"__name__": "example"}
    for block in blocks(page, "python"):
        exec(block.replace("20_000", "12"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(RUN_HERE), ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_in_order(page, workspace, monkeypatch):
    if "save_to_disk" in (text := "".join(blocks(page, "python"))):
        exec(text, {"__name__": "example"})
    for words in [*(line.split() for line in BEFORE.get(page.name, [])), *here(page)]:
        verb = name_of(words)
        extra = list(SMALL.get(verb, []))
        if verb in {"fit", "data cache-teacher", "data preview"}:
            extra += (
                TINY_DATA
                if "configs/data/mixture_folder.yaml" in words
                else [*TINY_DATA, "--data.init_args.num_train=8"]
            )
        if verb == "data build" and "--llava.count" not in words:
            extra += [f"--{name}.count={count}" for name, count in COUNTS.items()]
        if words[-2:] == ["--example", "3"]:
            extra += ["--example", "0"]
        main([*words, *extra])


def here(page):
    return [found for words in commands(page) if (found := options(words)) and not reason(words)]


def test_contact_sheet(workspace):
    (words,) = (words for _, words in ALL if "data_modules.synthetic.contact_sheet" in words)
    target = workspace / "sheet.png"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, *words[1:-1], str(target)], check=True, env=environment)
    assert Image.open(target).size == Image.open(ROOT / words[-1]).size


@pytest.mark.slow
def test_make_tensorboard_serves_runs(tmp_path):
    (rule,) = re.findall(r"-m (tensorboard\.main --logdir runs)", (ROOT / "Makefile").read_text())
    (tmp_path / "runs").mkdir()
    words = [sys.executable, "-m", *rule.split(), "--port", "0"]
    server = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[0] for line in server.stderr if (found := re.findall(r"http://\S+", line)))
        with urllib.request.urlopen(f"{address}data/environment") as answer:
            assert json.load(answer)["data_location"].endswith("runs")
    finally:
        server.terminate()
