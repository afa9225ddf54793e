import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import tiger
from tiger import cli
from tiger.cli import VERBS, expand_configs, main


def test_help_lists_every_verb_fast_and_without_torch():
    program = (
        "import sys\nfrom tiger.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as stop: assert stop.code == 0\n"
        "assert not {'torch', 'lightning', 'transformers'} & set(sys.modules)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    for verb, line in VERBS.items():
        assert f"\n  {verb} " in done.stdout
        assert line in done.stdout
    assert seconds < 3


def test_module_entry_point():
    done = subprocess.run(
        [sys.executable, "-m", "tiger", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"tiger {tiger.__version__}\n"


def test_no_arguments_show_help(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    assert "verbs:" in capsys.readouterr().out


def test_unknown_verb_names_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "unknown verb 'train'" in error
    assert all(verb in error for verb in VERBS)


def write(path, **content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def test_bases_come_before_the_file_that_extends_them(tmp_path):
    write(tmp_path / "trainer" / "cpu.yaml", a=1)
    write(tmp_path / "stage.yaml", b=2)
    middle = write(tmp_path / "middle.yaml", extends="trainer/cpu.yaml", c=3)
    top = write(tmp_path / "top.yaml", extends=["middle.yaml", "stage.yaml"], d=4)
    words = expand_configs(["--x=1", "--config", str(top), f"--config={tmp_path / 'stage.yaml'}", "--y", "2"])
    assert words[0] == "--x=1"
    assert words[-2:] == ["--y", "2"]
    assert words[1:-2:2] == ["--config"] * 5
    contents = [
        yaml.safe_load(Path(word).read_text()) if word.endswith(".yaml") else yaml.safe_load(word)
        for word in words[2:-2:2]
    ]
    assert contents == [{"a": 1}, {"c": 3}, {"b": 2}, {"d": 4}, {"b": 2}]
    assert expand_configs(["-c", str(middle)]) == [
        "--config",
        str(tmp_path / "trainer" / "cpu.yaml"),
        "--config",
        "c: 3\n",
    ]


def test_arguments_without_bases_are_untouched(tmp_path):
    plain = write(tmp_path / "plain.yaml", a="5e-6")
    words = ["--config", str(plain), "--config", "missing.yaml", "--flag"]
    assert expand_configs(words) == words


def test_a_missing_base_names_both_files(tmp_path):
    top = write(tmp_path / "top.yaml", extends="gone.yaml")
    with pytest.raises(FileNotFoundError, match=r"top\.yaml extends .*gone\.yaml, which does not exist"):
        expand_configs(["-c", str(top)])


def test_a_circle_of_bases_is_an_error(tmp_path):
    write(tmp_path / "one.yaml", extends="two.yaml")
    two = write(tmp_path / "two.yaml", extends="one.yaml")
    with pytest.raises(ValueError, match="extends itself"):
        expand_configs(["-c", str(two)])


@pytest.fixture
def plain_function(monkeypatch):
    """Stands for `generate` and `benchmark`: answers with what it was given."""

    def function(name: str, count: int = 3, ratios: list[float] = [0.5]):  # noqa: B006
        """Returns its arguments.

        Args:
            name: A name.
            count: A number.
            ratios: Several numbers.
        """
        return name, count, ratios

    monkeypatch.setattr(cli, "_function", lambda verb: function)


@pytest.mark.parametrize("verb", ["generate", "benchmark"])
def test_functions_take_files_then_options(tmp_path, plain_function, verb):
    base = write(tmp_path / "base.yaml", name="base", count=4)
    top = write(tmp_path / "top.yaml", extends="base.yaml", ratios=[1.0, 2.0])
    assert main([verb, "--config", str(top), "--count", "5"]) == ("base", 5, [1.0, 2.0])
    assert main([verb, "--count", "5", "--config", str(base)]) == ("base", 4, [0.5])


def test_unknown_option_of_a_function_is_an_error(tmp_path, plain_function, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["generate", "--config", str(write(tmp_path / "a.yaml", name="a", cuont=1))])
    assert stop.value.code == 2
    assert "cuont" in capsys.readouterr().err
