"""Loads backbones and pairs from hub ids, local folders, or the shipped tiny pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoProcessor,
    LlavaNextForConditionalGeneration,
    PreTrainedConfig,
    Qwen3VLForConditionalGeneration,
)

from tiger.backbones.base import Backbone
from tiger.backbones.llava_next import LlavaNextBackbone, check_format
from tiger.backbones.qwen3_vl import Qwen3VLBackbone

SHIPPED = Path(__file__).parent.parent / "pairs"
FAMILIES: dict[str, tuple[type[Any], type[Backbone]]] = {
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLBackbone),
    "llava_next": (LlavaNextForConditionalGeneration, LlavaNextBackbone),
}
# What decides the shape of image tensors and the number of image tokens, in vision tower and whole model.
TOWER = ("patch_size", "temporal_patch_size", "spatial_merge_size", "in_channels", "image_size")
WHOLE = ("image_token_id", "image_grid_pinpoints", "vision_feature_select_strategy")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def resolve(name_or_path: str) -> str:
    """Turns "tiny/verifier" and the like into the folder shipped with TIGER; leaves other names alone."""
    shipped = SHIPPED / name_or_path
    return str(shipped) if not Path(name_or_path).exists() and shipped.is_dir() else name_or_path


def family_of(path: str) -> str:
    """Model type of a hub id or local folder.

    Raises:
        FileNotFoundError: If a local folder is missing or lacks the model's files.
        ValueError: If the family is not supported.
    """
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise FileNotFoundError(
                f"{folder} holds no config.json; expected a folder written by save_pretrained."
            )
        config = json.loads((folder / "config.json").read_text())
    elif path.count("/") > 1 or path.startswith((".", "/", "tiny")):
        raise FileNotFoundError(
            f"There is no folder {path!r}. Give a local folder, a hub id or a shipped model."
        )
    else:
        config = PreTrainedConfig.get_config_dict(path)[0]
    check_format(path, config)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{path} is a {family!r} model; supported families: {', '.join(FAMILIES)}.")
    return str(family)


def load_backbone(name_or_path: str, dtype: str = "float32", attention: str = "sdpa") -> Backbone:
    """Loads a model and its processor, in evaluation mode.

    Args:
        name_or_path: Hub id, local folder, or the name of a shipped model such as "tiny/verifier".
        dtype: Name of a torch dtype.
        attention: Attention implementation of transformers.

    Raises:
        FileNotFoundError: If a local folder is missing or lacks the model's files.
        ValueError: If the family or the dtype is not supported.
    """
    if dtype not in DTYPES:
        raise ValueError(f"Unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}.")
    path = resolve(name_or_path)
    model_class, backbone_class = FAMILIES[family_of(path)]
    model = model_class.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation=attention, use_safetensors=True
    )
    return backbone_class(model, AutoProcessor.from_pretrained(path)).eval()


def image_difference(verifier: Any, drafter: Any) -> str:
    """What keeps one set of image tensors from fitting two models; empty if they fit both."""
    configs = [(model.config.vision_config, model.config) for model in (verifier, drafter)]
    for place, names in enumerate((TOWER, WHOLE)):
        for name in names:
            left, right = (getattr(pair[place], name, None) for pair in configs)
            if left != right:
                return f"{name} is {left} in the verifier and {right} in the drafter"
    return ""


def reads_alike(verifier: Backbone, drafter: Backbone) -> bool:
    """Whether a prompt that was prepared for the verifier is what the drafter would prepare."""
    left, right = verifier.processor, drafter.processor
    return (
        type(verifier) is type(drafter)
        and left.chat_template == right.chat_template
        and not image_difference(verifier.model, drafter.model)
        and left.image_processor.to_dict() == right.image_processor.to_dict()
    )


def check_pair(verifier: Backbone, drafter: Backbone) -> None:
    """Checks that drafter and verifier read the same tokens.

    Raises:
        ValueError: Naming the first difference.
    """
    if verifier.vocab_size != drafter.vocab_size:
        raise ValueError(
            f"The verifier scores {verifier.vocab_size} tokens and the drafter {drafter.vocab_size}; "
            "they must share one vocabulary. Choose a pair of one model family."
        )
    if verifier.tokenizer is drafter.tokenizer:
        return
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
