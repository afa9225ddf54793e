"""Saves and loads routed drafters: a model folder plus the router's weights and the drafter's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tiger.backbones.folders import CONFIG, open_to_readers
from tiger.backbones.loading import check_model, load_backbone
from tiger.drafting.lora import merged_weights
from tiger.drafting.routed import RoutedDrafter

SETTINGS_FILE = "drafter.json"
ROUTER_FILE = "router.safetensors"
# In a drafter's config.json, so that a folder which lost both files does not pass for a plain model.
MARK = "tiger_drafter"
PLAIN = {"selector": "full", "layout": "inline", "query": "visual", "num_routed": 8, "draft_temperature": 1.0}


def save_drafter(drafter: RoutedDrafter, folder: Path, **notes: Any) -> None:
    """Writes a folder that `load_drafter` reads; adapters are merged into the weights that are written.

    Args:
        drafter: The drafter.
        folder: Target folder, created if missing.
        notes: Further entries of `drafter.json`, such as the training stage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = drafter.backbone.model
    model.save_pretrained(folder, state_dict=merged_weights(model))
    drafter.backbone.processor.save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text()) | {MARK: True}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(
        {name: value.contiguous() for name, value in drafter.router.state_dict().items()},
        folder / ROUTER_FILE,
    )
    settings = {key: getattr(drafter, key) for key in PLAIN}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings | notes, indent=2) + "\n")
    open_to_readers(folder, SETTINGS_FILE)


def check_drafter(name_or_path: str) -> Path:
    """Checks that the files of a drafter, or of a plain model that is to be one, are there; loads nothing.

    Returns:
        Its folder.

    Raises:
        FileNotFoundError: If the folder or files of it are missing.
        ValueError: If the model's family is not supported.
    """
    folder = check_model(name_or_path)
    own = [name for name in (SETTINGS_FILE, ROUTER_FILE) if (folder / name).exists()]
    if len(own) == 1 or (not own and json.loads((folder / CONFIG).read_text()).get(MARK)):
        missing = " and ".join(name for name in (SETTINGS_FILE, ROUTER_FILE) if name not in own)
        raise FileNotFoundError(
            f"{folder} holds the model of a drafter but lacks {missing}. Copy or fetch the whole folder; to "
            f"use the model as a plain one, take the entry {MARK} out of its {CONFIG}."
        )
    return folder


def load_drafter(
    name_or_path: str, dtype: str = "float32", attention: str = "sdpa", **overrides: Any
) -> RoutedDrafter:
    """Loads a drafter, in evaluation mode.

    A folder without drafter settings is a plain vision-language model: it sees every visual token inline,
    unless the overrides say otherwise; its router is then untrained.

    Args:
        name_or_path: Folder, hub id or shipped name.
        dtype: Name of a torch dtype.
        attention: Attention implementation of transformers.
        overrides: Settings of `RoutedDrafter` to use in place of the saved ones; None keeps the saved one.

    Raises:
        FileNotFoundError: If files of the drafter are missing.
        ValueError: If a setting is unknown, or the saved router does not fit the model.
    """
    folder = check_drafter(name_or_path)
    backbone = load_backbone(name_or_path, dtype, attention)
    own = (folder / SETTINGS_FILE).exists()
    saved = json.loads((folder / SETTINGS_FILE).read_text()) if own else {}
    if unknown := overrides.keys() - PLAIN.keys():
        raise ValueError(f"Unknown drafter settings {sorted(unknown)}; choose from {', '.join(PLAIN)}.")
    chosen = {key: value for key, value in overrides.items() if value is not None}
    settings = {key: (PLAIN | saved | chosen)[key] for key in PLAIN}
    drafter = RoutedDrafter(backbone, **settings)
    if own:
        _load_router(drafter, folder / ROUTER_FILE)
    return drafter.to(backbone.dtype).eval()


def _load_router(drafter: RoutedDrafter, file: Path) -> None:
    weights = load_file(file)
    expected = {name: tuple(value.shape) for name, value in drafter.router.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if found != expected:
        raise ValueError(
            f"{file} belongs to another model: it holds {found}, a drafter of width "
            f"{drafter.backbone.hidden_size} needs {expected}. Take router and model from one folder."
        )
    drafter.router.load_state_dict(weights)
