"""Saves and loads routed drafters: a model folder plus the router's weights and the drafter's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers.utils import cached_file

from tiger.backbones.loading import load_backbone, resolve
from tiger.drafting.routed import RoutedDrafter

SETTINGS_FILE = "drafter.json"
ROUTER_FILE = "router.safetensors"
PLAIN = {"selector": "full", "layout": "inline", "query": "visual", "num_routed": 8}


def save_drafter(drafter: RoutedDrafter, folder: Path, **notes: Any) -> None:
    """Writes a folder that `load_drafter` reads.

    Args:
        drafter: The drafter.
        folder: Target folder, created if missing.
        notes: Further entries of `drafter.json`, such as the training stage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drafter.backbone.model.save_pretrained(folder)
    drafter.backbone.processor.save_pretrained(folder)
    save_file(
        {name: value.contiguous() for name, value in drafter.router.state_dict().items()},
        folder / ROUTER_FILE,
    )
    settings = {key: getattr(drafter, key) for key in PLAIN}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings | notes, indent=2) + "\n")


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
        FileNotFoundError: If only one of the settings and the router is there.
        ValueError: If a setting is unknown, or the saved router does not fit the model.
    """
    backbone = load_backbone(name_or_path, dtype, attention)
    settings_file, router_file = (_find(name_or_path, name) for name in (SETTINGS_FILE, ROUTER_FILE))
    if (settings_file is None) != (router_file is None):
        missing, found = (ROUTER_FILE, settings_file) if settings_file else (SETTINGS_FILE, router_file)
        raise FileNotFoundError(
            f"{name_or_path} lacks {missing}, which belongs to {found}. Copy or fetch both."
        )
    saved = json.loads(settings_file.read_text()) if settings_file else {}
    if unknown := overrides.keys() - PLAIN.keys():
        raise ValueError(f"Unknown drafter settings {sorted(unknown)}; choose from {', '.join(PLAIN)}.")
    chosen = {key: value for key, value in overrides.items() if value is not None}
    settings = {key: (PLAIN | saved | chosen)[key] for key in PLAIN}
    drafter = RoutedDrafter(backbone, **settings)
    if router_file:
        _load_router(drafter, router_file)
    return drafter.to(backbone.dtype).eval()


def _find(name_or_path: str, file: str) -> Path | None:
    """A file of a local folder or of a hub repository, downloaded if need be; None if there is none."""
    found = cached_file(resolve(name_or_path), file, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


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
