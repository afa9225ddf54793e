"""Loads backbones and pairs from hub ids, local folders, or the shipped tiny pair."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from tiger.backbones.qwen3_vl import Qwen3VLBackbone

SHIPPED = Path(__file__).parent.parent / "pairs"
FAMILIES = {"qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLBackbone)}


def resolve(name_or_path: str) -> str:
    """Turns "tiny/verifier" and the like into the folder that is shipped with TIGER; leaves other names alone."""
    shipped = SHIPPED / name_or_path
    return str(shipped) if not Path(name_or_path).exists() and shipped.is_dir() else name_or_path


def load_backbone(name_or_path: str, dtype: str = "float32", attention: str = "sdpa") -> Qwen3VLBackbone:
    """Loads a model and its processor, in evaluation mode.

    Args:
        name_or_path: Hub id, local folder, or the name of a shipped model such as "tiny/verifier".
        dtype: Name of a torch dtype.
        attention: Attention implementation of transformers.

    Raises:
        FileNotFoundError: If a local folder lacks the model's files.
        ValueError: If the family is not supported.
    """
    path = resolve(name_or_path)
    folder = Path(path)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no config.json; expected a folder written by save_pretrained.")
    if not folder.is_dir() and (path.count("/") > 1 or path.startswith((".", "/", "tiny"))):
        raise FileNotFoundError(f"There is no folder {path!r}. Give a local folder, a hub id or a shipped model.")
    if folder.is_dir():
        family = json.loads((folder / "config.json").read_text()).get("model_type")
        if family not in FAMILIES:
            raise ValueError(f"{name_or_path} is a {family!r} model; supported families: {', '.join(FAMILIES)}.")
    processor = AutoProcessor.from_pretrained(path)
    model_class, backbone_class = FAMILIES["qwen3_vl"]
    model = model_class.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation=attention, use_safetensors=True
    )
    return backbone_class(model.eval(), processor)


def check_pair(verifier: Qwen3VLBackbone, drafter: Qwen3VLBackbone) -> None:
    """Checks that drafter and verifier read the same tokens.

    Raises:
        ValueError: Naming the first difference.
    """
    left, right = verifier.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    if left == right:
        return
    differing = min(
        (token for token in left.keys() | right.keys() if left.get(token) != right.get(token)),
        key=lambda token: min(left.get(token, 10**9), right.get(token, 10**9)),
    )
    raise ValueError(
        "Drafter and verifier must share one tokenizer; the first difference is the token "
        f"{differing!r}: id {left.get(differing)} in the verifier, {right.get(differing)} in the drafter. "
        "Choose a pair of one model family."
    )
