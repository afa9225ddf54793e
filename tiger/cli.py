"""The command line: `python -m tiger VERB`. Each verb imports only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import tiger

VERBS = {
    "fit": "Train a drafter or draft head: KD warm-start, acceptance alignment or head distillation.",
    "validate": "Decode the validation split with a drafter in training.",
    "test": "Decode the test split with a drafter in training.",
    "predict": "Decode the prediction split and return the generations.",
    "generate": "Answer one prompt about an image, showing rounds and speed.",
    "benchmark": "Compare decoders on evaluation sets: AccLen, speed, scores, exactness.",
    "ablate": "Run the paper's studies on a pair and write their tables beside the paper's.",
    "report": "Write static pages of benchmarks, studies and training runs, with what has changed.",
    "export": "Write a drafter's folder to publish, with a model card; convert heads of other layouts.",
    "plan": "Memory and work of a pair and a stage, before any weights are there.",
    "data": "Prepare data: mixtures of a recipe, the verifier's lessons for KD.",
}
DATA = {
    "build": "Build the mixture of a recipe: manifest.json and report.md.",
    "report": "Print what a built mixture was made of.",
    "verify": "Rebuild a mixture and compare it with its manifest.",
    "preview": "Print a training example of a draft head with the supervised tokens marked.",
    "cache-teacher": "Keep the verifier's lessons along the training answers, for KD or a draft head.",
}
PROGRAM = "python -m tiger"
EXTENDS = "extends"
SAVE_MEMORY = (
    "To need less memory in training, lower batch_size (and raise trainer.accumulate_grad_batches as much), "
    "num_anchors, group_size or block_size, or set gradient_checkpointing true or lora; in decoding, lower "
    "the batch sizes or max_new_tokens. In both, verifier_quantization stores the verifier in 4 or 8 bits."
)


def main(args: list[str] | None = None) -> Any:
    """Runs one verb.

    Args:
        args: Command-line arguments, the verb first; those of the process by default.

    Returns:
        The verb's result: the `TigerCLI` of a Lightning verb, or what the function returns.

    Raises:
        SystemExit: After help (code 0) and after unusable arguments (code 2).
        torch.OutOfMemoryError: If a GPU has too little memory; saying which options need less.
    """
    words = sys.argv[1:] if args is None else list(args)
    if not words or words[0] in {"-h", "--help"}:
        print(usage())
        raise SystemExit(0)
    if words[0] == "--version":
        print(f"tiger {tiger.__version__}")
        raise SystemExit(0)
    verb = words[0]
    if verb not in VERBS:
        print(f"{PROGRAM}: error: unknown verb {verb!r}; choose one of: {', '.join(VERBS)}.", file=sys.stderr)
        raise SystemExit(2)
    import torch

    try:
        if verb == "data":
            return _data(words[1:])
        options = expand_configs(words[1:])
        if verb in {"generate", "benchmark", "export"}:
            return _call(_function(verb), verb, options)
        if verb == "ablate":
            return _ablate(options)
        if verb == "report":
            from tiger.report.report import report

            return report(options)
        if verb == "plan":
            from tiger.training.planning import plan

            return plan(options)
        return _lightning(verb, options)
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(f"{error}\n{SAVE_MEMORY}") from error


def usage() -> str:
    """The text of `python -m tiger --help`."""
    verbs = "\n".join(f"  {verb:<11}{line}" for verb, line in VERBS.items())
    return (
        f"usage: {PROGRAM} VERB [--config FILE ...] [options]\n\n"
        "TIGER: exact speculative decoding for vision-language models with a routed drafter.\n\n"
        f"verbs:\n{verbs}\n\n"
        f"`{PROGRAM} VERB --help` lists its options; a later option or file overrides an earlier one."
    )


def _data(words: list[str]) -> Any:
    """Runs a sub-verb of `data`."""
    name = words[0] if words else "--help"
    if name in {"-h", "--help"}:
        verbs = "\n".join(f"  {verb:<15}{line}" for verb, line in DATA.items())
        print(f"usage: {PROGRAM} data VERB [--config FILE ...] [options]\n\nverbs:\n{verbs}")
        raise SystemExit(0)
    if name not in DATA:
        known = ", ".join(DATA)
        print(f"{PROGRAM} data: error: unknown verb {name!r}; choose one of: {known}.", file=sys.stderr)
        raise SystemExit(2)
    options = expand_configs(words[1:])
    if name == "cache-teacher":
        from tiger.training.cache_teacher import cache_teacher

        return cache_teacher(options)
    if name == "preview":
        from tiger.training.preview import preview

        return preview(options)
    from data_modules.verbs import build, report, verify

    return {"build": build, "report": report, "verify": verify}[name](options)


def expand_configs(words: list[str]) -> list[str]:
    """Puts the files that a config `extends` in front of it, so that it overrides them.

    Args:
        words: Arguments after the verb. `extends: [FILE, ...]` at the top of a YAML file names its bases,
            relative to the file itself.

    Returns:
        The arguments with every such file replaced by `--config` options, bases first.
    """
    expanded: list[str] = []
    words = [part for word in words for part in _split_config(word)]
    for option, value in zip(["", *words], [*words, ""], strict=True):
        if option in {"-c", "--config"} and Path(value).is_file():
            expanded[-1:] = [part for text in _bases(Path(value), ()) for part in ("--config", text)]
        elif value:
            expanded.append(value)
    return expanded


def _split_config(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--config=") else [word]


def _bases(path: Path, below: tuple[Path, ...]) -> list[str]:
    """The path, after its bases; a file with bases is given as text, without the `extends` entry.

    Raises:
        FileNotFoundError: If a base does not exist.
        ValueError: If a file extends itself.
    """
    if path.resolve() in below:
        raise ValueError(
            f"{path} extends itself by way of {below[-1]}; remove one of the two `extends` entries."
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"{below[-1]} extends {path}, which does not exist; give a path relative to the former."
        )
    content = yaml.safe_load(path.read_text()) or {}
    if not isinstance(content, dict) or EXTENDS not in content:
        return [str(path)]
    names = content.pop(EXTENDS)
    names = [names] if isinstance(names, str) else names
    chain = (*below, path.resolve())
    texts = [text for name in names for text in _bases(path.parent / name, chain)]
    return [*texts, yaml.safe_dump(content, sort_keys=False)]


def _function(verb: str) -> Callable[..., Any]:
    """The plain function behind a verb; imported late, as it pulls in torch and transformers."""
    if verb == "generate":
        from tiger.evaluation.generate import generate

        return generate
    if verb == "export":
        from tiger.evaluation.export import export

        return export
    from tiger.evaluation.runner import benchmark

    return benchmark


def _call(function: Callable[..., Any], verb: str, options: list[str]) -> Any:
    """Calls a function with its arguments taken from the command line and `--config` files."""
    from jsonargparse import auto_cli

    positional = verb == "export"
    return auto_cli(
        function, args=options, as_positional=positional, prog=f"{PROGRAM} {verb}", allow_abbrev=False
    )


def _ablate(options: list[str]) -> Any:
    """Runs studies; their names come first, `--dry_run` may stand without a value."""
    from tiger.ablation.verb import ablate

    count = next((place for place, word in enumerate(options) if word.startswith("-")), len(options))
    names, rest = options[:count], options[count:]
    flags = [place for place, word in enumerate(rest) if word == "--dry_run"]
    for place in flags:
        if rest[place + 1 : place + 2] not in (["true"], ["false"]):
            rest[place] = "--dry_run=true"
    studies = ["--study", f"[{', '.join(names)}]"] if names else []
    return _call(ablate, "ablate", [*studies, *rest])


def _lightning(verb: str, options: list[str]) -> Any:
    from tiger.training.lightning_cli import TigerCLI

    return TigerCLI.run(verb, options)
