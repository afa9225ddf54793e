"""Loads backbones and pairs from hub ids, local folders, or the shipped tiny pair."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoProcessor,
    BitsAndBytesConfig,
    LlavaNextForConditionalGeneration,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)

from tiger.backbones.base import Backbone
from tiger.backbones.folders import CONFIG, check_processor, check_weights, resolve
from tiger.backbones.llava_next import LlavaNextBackbone, check_format
from tiger.backbones.qwen2_5_vl import Qwen25VLBackbone
from tiger.backbones.qwen3_vl import Qwen3VLBackbone

FAMILIES: dict[str, tuple[type[Any], type[Backbone]]] = {
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen25VLBackbone),
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLBackbone),
    "llava_next": (LlavaNextForConditionalGeneration, LlavaNextBackbone),
}
# What decides the shape of image tensors and the number of image tokens, in vision tower and whole model.
TOWER = ("patch_size", "temporal_patch_size", "spatial_merge_size", "in_channels", "image_size")
WHOLE = ("image_token_id", "image_grid_pinpoints", "vision_feature_select_strategy")
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
    config = json.loads((folder / CONFIG).read_text())
    check_format(name_or_path, config)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{name_or_path} is a {family!r} model; supported families: {', '.join(FAMILIES)}.")
    return str(family)


def check_model(name_or_path: str) -> Path:
    """Checks that a model's files are there, fetching them if needed, and loads nothing.

    Args:
        name_or_path: Hub id, folder or shipped name.

    Returns:
        Its folder.

    Raises:
        FileNotFoundError: If the folder or files of it are missing.
        ValueError: If the family is not supported.
    """
    family_of(name_or_path)
    folder = resolve(name_or_path)
    check_weights(folder)
    check_processor(folder)
    return folder


def load_backbone(
    name_or_path: str,
    dtype: str = "float32",
    attention: str = "sdpa",
    quantization: Quantization | None = None,
    device: torch.device | str = "cpu",
) -> Backbone:
    """Loads a model and its processor, in evaluation mode; reads safetensors only and runs no remote code.

    Args:
        name_or_path: Hub id, also as "owner/model@revision", local folder, or the name of a shipped model
            such as "tiny/verifier".
        dtype: Name of a torch dtype.
        attention: Attention implementation of transformers.
        quantization: Stores the language model's weights in 4 or 8 bits, by bitsandbytes; it then stands on
            the current GPU, if there is one, whatever `device` says.
        device: Where the weights go.

    Raises:
        FileNotFoundError: If a folder is missing or lacks the model's files.
        ValueError: If the family, the dtype or the quantization is not supported.
    """
    if dtype not in DTYPES:
        raise ValueError(f"Unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}.")
    config = quantization_config(quantization, dtype) if quantization else None
    folder = check_model(name_or_path)
    model_class, backbone_class = FAMILIES[family_of(name_or_path)]
    model = model_class.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        use_safetensors=True,
        quantization_config=config,
    )
    backbone = backbone_class(model, load_processor(folder)).eval()
    return backbone if quantization else backbone.to(device)


def choose_device(name: str | None) -> torch.device:
    """The device of a name.

    Args:
        name: cpu, cuda or cuda:N; None takes a GPU if there is one.

    Raises:
        ValueError: If the name is another one, or there is no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None:
        return torch.device("cuda" if count else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise ValueError(f"device is {name!r}; choose cpu, cuda, cuda:N, or null for a GPU if there is one.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"device is {name!r}, but torch sees {count} CUDA devices here. Choose another, cpu, or null; "
            "on a machine with a GPU, check its driver and that torch was installed with CUDA."
        )
    return device


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
