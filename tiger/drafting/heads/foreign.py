"""Reads draft heads of others: EAGLE-3 of speculators, and EAGLE-2, EAGLE-3 and ViSpec of their authors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from tiger.backbones.base import Backbone
from tiger.backbones.folders import CONFIG, check_weights
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.layers import layer_config
from tiger.drafting.heads.saving import build_head, set_weights
from tiger.drafting.heads.speculators import LAYERS, OWN, TYPE, VARIANTS, WEIGHTS

# Beginnings of names of weights, theirs and ours; the first that fits counts.
NAMES = {"midlayer.": "layers.0.", "imadpt.q": "adaptor.queries", "imadpt.": "adaptor."}
# The verifier's embeddings are read from the verifier, and `t2d` follows from `d2t`.
UNREAD = ("embed_tokens.weight", "t2d")
# What of a layer's configuration decides what it computes, and what it is computed from.
SIZES = """
hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size hidden_act
rms_norm_eps rope_parameters
"""


def import_head(folder: Path, verifier: Backbone) -> DraftHead:
    """Loads a head of others beside its verifier, in evaluation mode and in the verifier's type and place.

    Args:
        folder: Folder with config.json and safetensors in the layout of speculators (EAGLE-3), or of the
            authors of EAGLE-2, EAGLE-3 or ViSpec.
        verifier: The verifier that it was trained for.

    Raises:
        FileNotFoundError: If config.json or safetensors are missing.
        ValueError: If the layout is not known, the head was made for another verifier, or it has what the
            method's class here has no place for; naming that.
    """
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} holds neither a draft head nor a {CONFIG}. Give a head's folder.")
    config = json.loads((folder / CONFIG).read_text())
    method, weights = _read(folder, config)
    _check_config(folder, config, verifier)
    settings = dict(config.get(OWN, {}))
    if method == "eagle3":
        settings |= {"layers": _layers(config, verifier), "draft_vocab_size": None}
        if (ids := _draft_ids(folder, weights, verifier)) is not None:
            weights["draft_ids"], settings["draft_vocab_size"] = ids, len(ids)
    if (queries := weights.get("adaptor.queries")) is not None:
        settings["num_q"] = len(queries)
    head = build_head(method, verifier, **settings)
    if "draft_ids" in weights:
        head.restrict(weights["draft_ids"].tolist())  # checks them
    biases = {name: value for name, value in head.state_dict().items() if name.endswith("fc.bias")}
    weights = {name: torch.zeros_like(value) for name, value in biases.items()} | weights  # some have none
    set_weights(head, weights, folder / WEIGHTS)
    return head.to(verifier.device, verifier.dtype).eval()


def _read(folder: Path, config: dict[str, Any]) -> tuple[str, dict[str, Tensor]]:
    """Method and weights by our names."""
    check_weights(folder)
    files = sorted(folder.glob("model*.safetensors"))
    names = {name for file in files for name in safe_open(file, "pt").keys()}  # noqa: SIM118
    method = "vispec" if "img_fc.weight" in names else "eagle3" if "lm_head.weight" in names else "eagle2"
    if config.get(TYPE, "eagle3") != "eagle3" or "fc.weight" not in names:
        raise ValueError(
            f"{folder} is no head that can be read: {config.get(TYPE) or config.get('model_type')!r} with "
            f"weights such as {sorted(names)[:3]}. Known are EAGLE-3 in the layout of speculators, and "
            "EAGLE-2, EAGLE-3 and ViSpec as their authors save them."
        )
    found: dict[str, Tensor] = {}
    for file in files:
        found |= load_file(file)
    return method, {_own_name(name): value for name, value in found.items() if name not in UNREAD}


def _own_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _check_config(folder: Path, config: dict[str, Any], verifier: Backbone) -> None:
    """Checks that our head for this verifier computes what theirs did.

    Raises:
        ValueError: Naming what differs.
    """
    entries = dict(config.get("transformer_layer_config", config))
    theirs: Any = AutoConfig.for_model(entries.pop("model_type", "llama"), **entries)
    implied = {"norm_before_residual": TYPE in config}  # true for vLLM unless it is written
    used = [name for name in VARIANTS if config.get(name, implied.get(name, False))]
    used += sorted(set(getattr(theirs, "layer_types", None) or ()) - {"full_attention"})
    if used:
        raise ValueError(
            f"{folder} is a head with {', '.join(used)}, which heads here do not have. Take one that was "
            "trained without. If this one was trained without norm_before_residual and its config.json does "
            "not say so, write false there."
        )
    ours = layer_config(verifier, vocab_size=verifier.text_config.vocab_size)
    pairs = {name: (getattr(theirs, name, None), getattr(ours, name)) for name in SIZES.split()}
    differing = [f"{name} {left}, not {right}" for name, (left, right) in pairs.items() if left != right]
    if differing:
        raise ValueError(
            f"{folder} does not fit the verifier: it has {'; '.join(differing)}. Heads here have one layer "
            "of the verifier's sizes. Name the verifier that it was trained with, or train a head."
        )


def _layers(config: dict[str, Any], verifier: Backbone) -> list[int]:
    """Layers that an EAGLE-3 head reads; where nothing is said, those of the authors' code."""
    usual = [2, verifier.num_layers // 2, verifier.num_layers - 3]
    return sorted(config.get(LAYERS) or (config.get("eagle_config") or {}).get(LAYERS) or usual)


def _draft_ids(folder: Path, weights: dict[str, Tensor], verifier: Backbone) -> Tensor | None:
    """Ids of the draft vocabulary; None for the verifier's own, whose padding is then cut off the weights."""
    rows, known = weights["lm_head.weight"], verifier.vocab_size
    offsets = weights.pop("d2t", torch.zeros(len(rows) if len(rows) >= known else 0, dtype=torch.long))
    if len(offsets) != len(rows):
        raise ValueError(
            f"{folder} drafts {len(rows)} of the verifier's {known} ids, and its d2t, which says which ones, "
            f"has {len(offsets)}. Take the whole checkpoint."
        )
    if not offsets.any() and len(rows) >= known:
        weights["lm_head.weight"] = rows[:known]
        return None
    return torch.arange(len(rows)) + offsets
