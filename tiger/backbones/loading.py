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
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)

from tiger.backbones.base import Backbone
from tiger.backbones.llava_next import LlavaNextBackbone, check_format
from tiger.backbones.qwen2_5_vl import Qwen25VLBackbone
from tiger.backbones.qwen3_vl import Qwen3VLBackbone

SHIPPED = Path(__file__).parent.parent / "pairs"
FAMILIES: dict[str, tuple[type[Any], type[Backbone]]] = {
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen25VLBackbone),
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
        and (not verifier.reads_video or left.video_processor.to_dict() == right.video_processor.to_dict())
    )


def check_pair(verifier: Backbone, drafter: Backbone) -> None:
    """Checks that drafter and verifier read and score the same tokens.

    The rows that pad a model's vocabulary behind the tokenizer's last id may differ in number; they are never
    scored, see `Backbone.vocab_size`.

    Raises:
        ValueError: Naming the first id that differs.
    """
    if verifier.tokenizer is not drafter.tokenizer:
        left, right = (
            {index: token for token, index in model.tokenizer.get_vocab().items()}
            for model in (verifier, drafter)
        )
        differing = [i for i in left.keys() | right.keys() if left.get(i) != right.get(i)]
        if differing:
            first = min(differing)
            raise ValueError(
                f"Drafter and verifier must share one tokenizer; the first difference is id {first}: "
                f"{left.get(first)!r} in the verifier, {right.get(first)!r} in the drafter. "
                "Choose a pair of one model family."
            )
    sizes = verifier.vocab_size, drafter.vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"The verifier scores {sizes[0]} ids of the shared tokenizer and the drafter {sizes[1]}; "
            f"id {min(sizes)} is missing in one of them. Choose models that have an output for every token."
        )
