"""Every command of the README runs: training briefly, the rest as it stands."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tiger.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [line.split("#")[0].strip() for line in BLOCKS.splitlines() if line.strip()]
TIGER = [shlex.split(line)[3:] for line in COMMANDS if line.startswith("python -m tiger")]
SMALL = ["--trainer.fast_dev_run=true", "--trainer.callbacks=[]", "--data.init_args.num_train=4"]


def test_the_readme_holds_the_commands_that_are_tested_here():
    assert [line for line in COMMANDS if line.startswith("make")] == ["make demo", "make test"]
    assert [words[0] for words in TIGER] == ["generate", "benchmark", "fit", "fit", "fit", "plan"]
    assert len(TIGER) + 2 == len(COMMANDS)


def test_make_targets_exist():
    listing = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"demo", "test"} <= {line.split()[0] for line in listing.splitlines()}


def test_generate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(ROOT / word) if word.startswith("docs/") else word for word in TIGER[0]]
    answer = main(words)
    assert answer.text in capsys.readouterr().out
    assert (tmp_path / "runs/page.html").stat().st_size > 10_000


def test_benchmark(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [*TIGER[1], "--num_prompts", "6", "--speed_prompts", "1", "--speed_repeats", "1"]
    words[words.index("--output") + 1] = str(tmp_path)
    cells = main(words)
    assert {cell["decoder"] for cell in cells} == {"autoregressive", "vanilla", "kd", "kd_continued", "tiger"}
    assert all(cell["exact"] == 1.0 for cell in cells if cell["temperature"] == 0)


@pytest.mark.parametrize("words", TIGER[2:4], ids=["kd", "align"])
def test_fit(words, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    drafter = ["--model.init_args.drafter=tiny/kd"] if "align" in words[-1] else []
    main(
        [*words, *drafter, *SMALL, "--data.init_args.batch_size=4", f"--data.init_args.cache_dir={tmp_path}"]
    )


def test_real_pair_command_is_valid(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as stop:
        main([*TIGER[4], "--print_config"])
    assert stop.value.code == 0
    assert "Qwen/Qwen3-VL-8B-Instruct" in capsys.readouterr().out


def test_plan(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    main(TIGER[5])
    assert "largest on 80GiB: training batch" in capsys.readouterr().out


def test_python_example(monkeypatch):
    monkeypatch.chdir(ROOT)
    example, names = re.search(r"```python\n(.*?)```", README, re.DOTALL), {}
    exec(example[1], names)
    inputs, verifier = names["inputs"], names["verifier"]
    plain = verifier.model.generate(**inputs, max_new_tokens=64, do_sample=False)
    assert names["output"].tolist() == plain.tolist()
