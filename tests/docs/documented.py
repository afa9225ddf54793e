"""The commands and Python examples of README and docs, and how each is run."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TIGER = ["-m", "tiger"]
# What cannot run here, and why; such commands of `tiger` are still parsed.
NOT_HERE = {
    "Qwen/": "a model of the hub",
    "configs/pair/qwen": "a model of the hub",
    "paper_benchmark.yaml": "data sets of the hub",
    "capability_benchmark.yaml": "data sets of the hub",
    "torchrun": "several GPUs",
    "srun": "Slurm",
}
# Commands that are not `python -m tiger`.
OTHERS = {
    "make demo": "tests/cli/test_lightning_cli.py runs its configs, shortened",
    "make test": "it runs this test",
    "make ablation": "tests/ablation run its jobs at toy size, and `ablate` itself is parsed",
    "make setup": "installs; continuous integration runs it first",
    "make tensorboard": "does not end; test_commands.py starts it",
    "source .venv/bin/activate": "changes the shell",
    "export HF_HUB_OFFLINE=1": "changes the shell",
    "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK": "changes the shell",
    "python -m lmms_eval": "tests/evaluation/test_lmms_eval_plugin.py runs the plug-in",
    "python benchmarks/": "tests/benchmarks run the scripts at toy size",
    "python -m data_modules.synthetic.contact_sheet": "test_commands.py runs it",
}


def blocks(page, language):
    """Fenced blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page):
    """The commands of a page in order, with its variables put in and without comments."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    variables, found = {}, []
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if len(words) == 1 and re.match(r"[A-Z]+=", words[0]):
            name, _, value = words[0].partition("=")
            variables[f"${name}"] = value.split()
        else:
            found.append([part for word in words for part in variables.get(word, [word])])
    return found


def options(words):
    """Verb and options of a command of `tiger`, whatever starts it; None for any other command."""
    place = next((i for i in range(len(words) - 1) if words[i : i + 2] == TIGER), None)
    return None if place is None else words[place + 2 :]


def reason(words):
    """Why a command cannot run here; empty if it can."""
    if "plan" in words:
        return ""  # reads no weights
    return next((why for part, why in NOT_HERE.items() if part in " ".join(words)), "")
