"""The verbs `data build`, `data report` and `data verify`."""

from __future__ import annotations

import time
from pathlib import Path

from jsonargparse import ArgumentParser

from data_modules.index import read_index
from data_modules.manifest import MANIFEST, differences, read_manifest, write_mixture
from data_modules.mixture import Mixture
from data_modules.recipe import Recipe, build_mixture
from data_modules.reports import markdown


def build(options: list[str]) -> Mixture:
    """Builds a mixture and writes its manifest and report.

    Args:
        options: Config files and options of a `Recipe`, and `--output FOLDER`.

    Returns:
        The mixture.
    """
    parser = ArgumentParser(prog="python -m tiger data build", allow_abbrev=False)
    parser.add_argument("-c", "--config", action="config", help="File with options of the recipe.")
    parser.add_class_arguments(Recipe)
    parser.add_argument("--output", type=Path, required=True, help="Folder for manifest.json and report.md.")
    values = parser.instantiate(parser.parse_args(options))
    output: Path = values.pop("output")
    values.pop("config")
    recipe = Recipe(**vars(values))
    start = time.perf_counter()
    mixture = build_mixture(recipe)
    write_mixture(recipe, mixture, output)
    print(mixture.report())
    print(f"\n{output / MANIFEST}, built in {time.perf_counter() - start:.0f} s")
    return mixture


def report(options: list[str]) -> str:
    """Prints what a built mixture was made of.

    Args:
        options: The folder or its manifest.
    """
    content = read_manifest(_path(options, "report"))
    index = read_index(content)
    text = markdown(content["recipe"]["name"], len(index.entries), index.manifest, index.reports)
    print(text)
    return text


def verify(options: list[str]) -> None:
    """Rebuilds a mixture and compares it with its manifest.

    Args:
        options: The manifest or its folder.

    Raises:
        SystemExit: With code 1 if they differ, after saying in what.
    """
    path = _path(options, "verify")
    found = differences(path)
    if found:
        print("\n".join([f"{path} is not what its recipe makes now:", *found]))
        raise SystemExit(1)
    print(f"{path}: rebuilt, the same {read_manifest(path)['manifest']}")


def _path(options: list[str], verb: str) -> Path:
    parser = ArgumentParser(prog=f"python -m tiger data {verb}", allow_abbrev=False)
    parser.add_argument("path", type=Path, help="manifest.json of a built mixture, or its folder.")
    path: Path = parser.parse_args(options).path
    return path
