"""The folder of a built mixture: `manifest.json`, which makes it reproducible, and `report.md`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_modules.files import damaged, read_json, write_whole
from data_modules.index import Index, hash_of, read_index
from data_modules.mixture import Mixture
from data_modules.recipe import Recipe, build_mixture, open_shares

MANIFEST, REPORT = "manifest.json", "report.md"
FORMAT = 1  # raised when older manifests can no longer be read
NUM_NAMED = 5  # records that a difference names


def write_mixture(recipe: Recipe, mixture: Mixture, folder: Path) -> None:
    """Writes manifest and report.

    Args:
        recipe: What the mixture was made from.
        mixture: The mixture.
        folder: Where to; made if needed.
    """
    content = {
        "format": FORMAT,
        "recipe": asdict(recipe),
        **asdict(mixture.index),
        "ids": [mixture.key(index) for index in range(len(mixture))],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / REPORT, mixture.report() + "\n")
    write_whole(folder / MANIFEST, json.dumps(content, separators=(",", ":")) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest.

    Args:
        path: The file, or its folder.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged or of another format, or its records are not those of its hash.
    """
    path = path / MANIFEST if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no {str(path)!r}; make it with `python -m tiger data build --config FILE --output "
            "FOLDER`."
        )
    content = read_json(path, "Build the mixture again.")
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has the format {content.get('format')!r}, this version reads {FORMAT}; build it again."
        )
    try:
        index, ids = read_index(content), content["ids"]
    except (KeyError, TypeError) as error:
        raise damaged(path, repr(error), "Build the mixture again.") from error
    if len(ids) != len(index.entries) or hash_of(ids, index.entries) != index.manifest:
        raise ValueError(
            f"The records in {path} are not those of its hash {index.manifest}: the file was changed after "
            "it was built. Build the mixture again."
        )
    return content


def open_mixture(path: Path) -> tuple[Recipe, Mixture]:
    """The mixture that a manifest describes, without selecting its records again.

    Args:
        path: The manifest, or its folder.

    Raises:
        FileNotFoundError: If there is none, or a data set is gone.
        ValueError: If it is of another format, or its rows are not those it was built from.
    """
    content = read_manifest(path)
    recipe, saved = Recipe.of(content["recipe"]), read_index(content)
    shares = open_shares(recipe)
    index = Index.of(shares, saved.entries, saved.reports)
    if index.manifest != saved.manifest:
        raise ValueError(
            f"The rows that {path} names have the hash {index.manifest}, not {saved.manifest}: the file "
            "or a data set has changed. Build the mixture again."
        )
    return recipe, Mixture(recipe.name, shares, index)


def differences(path: Path, build: Callable[[Recipe], Mixture] = build_mixture) -> list[str]:
    """What a rebuilt mixture has other than its manifest says; nothing if it is the same.

    Args:
        path: The manifest, or its folder.
        build: Builds the mixture of a recipe.
    """
    content = read_manifest(path)
    saved = read_index(content)
    mixture = build(Recipe.of(content["recipe"]))
    ids = [mixture.key(i) for i in range(len(mixture))]
    if ids == content["ids"] and mixture.index == saved:
        return []
    old = {key: entry[2:] for key, entry in zip(content["ids"], saved.entries, strict=True)}
    new = {key: entry[2:] for key, entry in zip(ids, mixture.index.entries, strict=True)}
    changed = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    groups = {"gone": sorted(old.keys() - new), "new": sorted(new.keys() - old), "changed": changed}
    found = [f"manifest {saved.manifest}, rebuilt {mixture.manifest}"]
    found += [
        f"{report.source}: kept {report.kept}, rebuilt {other.kept}"
        for report, other in zip(saved.reports, mixture.index.reports, strict=True)
        if report.kept != other.kept
    ]
    found += [f"{len(keys)} {name}: {_some(keys)}" for name, keys in groups.items() if keys]
    return (
        found
        if any(groups.values())
        else [*found, "the same records, in another order, at other places or with another report"]
    )


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:NUM_NAMED]) + (", ..." if len(keys) > NUM_NAMED else "")
