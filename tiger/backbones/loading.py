"""Loads backbones and pairs from hub ids, local folders, or the shipped tiny pair."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoProcessor, BitsAndBytesConfig, Qwen3VLForConditionalGeneration

from tiger.backbones.base import Backbone
from tiger.backbones.folders import CONFIG, check_processor, check_weights, resolve
from tiger.backbones.qwen3_vl import Qwen3VLBackbone

FAMILIES: dict[str, tuple[type[Any], type[Backbone]]] = {
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLBackbone),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")
Quantization = Literal["4bit", "8bit"]
# Modules that keep their precision: few weights, through which every answer and every picture passes.
UNQUANTIZED = [".*visual", ".*vision_tower", ".*multi_modal_projector", "lm_head"]


def family_of(name_or_path: str) -> str:
    """Model type of a hub id, local folder or shipped model; fetches nothing but its config.

    Raises:
        FileNotFoundError: If a folder is missing or lacks the model's files.
        ValueError: If the family is not supported.
    """
    folder = resolve(name_or_path, [CONFIG])
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(
            f"{folder} holds no config.json; expected a folder written by save_pretrained."
        )
    family = json.loads((folder / CONFIG).read_text()).get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{name_or_path} is a {family!r} model; supported families: {', '.join(FAMILIES)}.")
    return str(family)


def load_backbone(
    name_or_path: str,
    dtype: str = "float32",
    attention: str = "sdpa",
    quantization: Quantization | None = None,
) -> Backbone:
    """Loads a model and its processor, in evaluation mode; reads safetensors only and runs no remote code.

    Args:
        name_or_path: Hub id, also as "owner/model@revision", local folder, or the name of a shipped model
            such as "tiny/verifier".
        dtype: Name of a torch dtype.
        attention: Attention implementation of transformers.
        quantization: Stores the language model's weights in 4 or 8 bits, by bitsandbytes; it then stands on
            the current GPU, if there is one.

    Raises:
        FileNotFoundError: If a folder is missing or lacks the model's files.
        ValueError: If the family, the dtype or the quantization is not supported.
    """
    if dtype not in DTYPES:
        raise ValueError(f"Unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}.")
    config = quantization_config(quantization, dtype) if quantization else None
    model_class, backbone_class = FAMILIES[family_of(name_or_path)]
    folder = resolve(name_or_path)
    check_weights(folder)
    model = model_class.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        use_safetensors=True,
        quantization_config=config,
    )
    return backbone_class(model, load_processor(folder)).eval()


def load_processor(folder: Path) -> Any:
    """Loads tokenizer and image processor of a model folder.

    Raises:
        FileNotFoundError: If a file or the chat template is missing.
    """
    check_processor(folder)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    if not processor.chat_template:
        raise FileNotFoundError(
            f"{folder} has no chat template. Copy chat_template.jinja from where the model comes from."
        )
    return processor


def quantization_config(quantization: str, dtype: str) -> BitsAndBytesConfig:
    """How bitsandbytes stores a language model.

    Args:
        quantization: 4bit (NF4 with quantized scales) or 8bit.
        dtype: Name of the torch dtype that is computed in.

    Raises:
        ValueError: If bitsandbytes is not installed, or the name is unknown.
    """
    if quantization not in ("4bit", "8bit"):
        raise ValueError(f"Unknown quantization {quantization!r}; choose 4bit, 8bit or null.")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            f"quantization {quantization} needs bitsandbytes, which is not installed. Run "
            "`pip install 'tiger-vlm[quantization]'`, or set the option to null."
        )
    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=UNQUANTIZED)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
        llm_int8_skip_modules=UNQUANTIZED,
    )


def image_difference(verifier: Any, drafter: Any) -> str:
    """What keeps one set of image tensors from fitting two models; empty if they fit both."""
    for name in ("patch_size", "temporal_patch_size", "spatial_merge_size", "in_channels"):
        left, right = (getattr(model.config.vision_config, name, None) for model in (verifier, drafter))
        if left != right:
            return f"{name} is {left} in the verifier and {right} in the drafter"
    left, right = verifier.config.image_token_id, drafter.config.image_token_id
    return "" if left == right else f"the image token is {left} in the verifier and {right} in the drafter"


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
