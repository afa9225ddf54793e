"""Saves and loads draft heads: weights, settings, and the sizes of the verifier that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from tiger.backbones.base import Backbone
from tiger.backbones.folders import open_to_readers
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.methods import HEADS

SETTINGS_FILE = "head.json"
WEIGHTS_FILE = "head.safetensors"


def build_head(method: str, verifier: Backbone, **settings: Any) -> DraftHead:
    """A new head.

    Raises:
        ValueError: If there is no such method, or it does not take such a setting.
    """
    if method not in HEADS:
        raise ValueError(f"There is no draft head {method!r}; choose one of {', '.join(HEADS)}.")
    try:
        return HEADS[method](verifier, **settings)
    except TypeError as error:
        raise ValueError(f"Head {method!r} cannot take {settings}: {error}.") from error


def sizes_of(verifier: Backbone) -> dict[str, int]:
    """What of a verifier a head's weights depend on."""
    names = ("hidden_size", "vocab_size", "num_layers")
    return {name: int(getattr(verifier, name)) for name in names}


def save_head(head: DraftHead, folder: Path, **notes: Any) -> None:
    """Writes a folder that `load_head` reads.

    Args:
        head: The head.
        folder: Target folder, created if missing.
        notes: Further entries of `head.json`, such as the training stage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in head.state_dict().items()}, folder / WEIGHTS_FILE)
    entries = {"method": head.method, "settings": head.settings, "verifier": sizes_of(head.verifier)}
    (folder / SETTINGS_FILE).write_text(json.dumps(entries | notes, indent=2) + "\n")
    open_to_readers(folder, SETTINGS_FILE)


def is_head(folder: Path) -> bool:
    """Whether a folder holds a draft head."""
    return (folder / SETTINGS_FILE).is_file()


def load_head(folder: Path, verifier: Backbone) -> DraftHead:
    """Loads a head beside its verifier, in evaluation mode and in the verifier's type and place.

    Raises:
        FileNotFoundError: If the weights are missing.
        ValueError: If the head was trained for another verifier, or its weights do not fit its settings.
    """
    entries = json.loads((folder / SETTINGS_FILE).read_text())
    if (expected := entries["verifier"]) != (found := sizes_of(verifier)):
        differing = [
            f"{name} {expected.get(name)}, not {size}"
            for name, size in found.items()
            if expected.get(name) != size
        ]
        raise ValueError(
            f"{folder} is a head for another verifier: it needs {'; '.join(differing)}. Name the verifier "
            "that it was trained with."
        )
    head = build_head(entries["method"], verifier, **entries["settings"])
    load_weights(head, folder)
    return head.to(verifier.device, verifier.dtype).eval()


def check_head(folder: Path) -> None:
    """Checks that the weights of a head are there.

    Raises:
        FileNotFoundError: If they are missing.
    """
    if not (folder / WEIGHTS_FILE).is_file():
        raise FileNotFoundError(f"{folder} holds no {WEIGHTS_FILE}. Copy or fetch the whole folder.")


def load_weights(head: DraftHead, folder: Path) -> None:
    """Gives a head the weights of a saved one.

    Raises:
        FileNotFoundError: If the weights are missing.
        ValueError: If they do not fit.
    """
    check_head(folder)
    set_weights(head, load_file(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)


def set_weights(head: DraftHead, weights: dict[str, Tensor], file: Path) -> None:
    """Gives a head weights that were read from a file.

    Raises:
        ValueError: If they do not fit, naming the first that are too many, missing or of another shape.
    """
    needed = {name: list(value.shape) for name, value in head.state_dict().items()}
    found = {name: list(value.shape) for name, value in weights.items()}
    if needed != found:
        wrong = [f"{name} {found[name]} has no place" for name in sorted(found.keys() - needed.keys())]
        wrong += [f"{name} {needed[name]} is missing" for name in sorted(needed.keys() - found.keys())]
        both = sorted(name for name in needed.keys() & found.keys() if needed[name] != found[name])
        wrong += [f"{name} is {found[name]}, not {needed[name]}" for name in both]
        raise ValueError(
            f"{file} does not fit a {head.method!r} head with {head.settings} for this verifier: "
            f"{'; '.join(wrong[:4])}. Take weights and settings from one folder, name the verifier that "
            "it was trained with, and start training from a head of the same method and options. A head that "
            "an earlier version saved with other parts has to be trained again."
        )
    head.load_state_dict(weights)
