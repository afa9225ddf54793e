"""Configurations of models by name: a local folder, a well-known model, or the hub's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlavaNextConfig, PretrainedConfig, Qwen2_5_VLConfig, Qwen3VLConfig

from tiger.backbones.folders import CONFIG, resolve
from tiger.backbones.loading import family_of


def _qwen3_vl(
    hidden: int, inner: int, layers: int, heads: int, tied: bool, tower: tuple[int, int, int], taps: list[int]
) -> PretrainedConfig:
    depth, width, tower_inner = tower
    text = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": tied,
    }
    vision = {
        "depth": depth,
        "hidden_size": width,
        "intermediate_size": tower_inner,
        "num_heads": 16,
        "out_hidden_size": hidden,
        "deepstack_visual_indexes": taps,
    }
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)


def _qwen2_5_vl(
    hidden: int, inner: int, layers: int, heads: int, key_heads: int, vocab: int, tied: bool
) -> PretrainedConfig:
    text = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": tied,
    }
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": hidden,
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)


def _llava_next(hidden: int, inner: int, layers: int, heads: int) -> PretrainedConfig:
    text = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 32064,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    }
    return LlavaNextConfig(text_config=text, vision_config=vision, image_token_index=32000)


SMALL_TOWER, LARGE_TOWER = (24, 1024, 4096), (27, 1152, 4304)
EARLY, LATE = [5, 11, 17], [8, 16, 24]
KNOWN: dict[str, tuple[Any, ...]] = {
    "Qwen/Qwen3-VL-2B-Instruct": (_qwen3_vl, 2048, 6144, 28, 16, True, SMALL_TOWER, EARLY),
    "Qwen/Qwen3-VL-4B-Instruct": (_qwen3_vl, 2560, 9728, 36, 32, True, SMALL_TOWER, EARLY),
    "Qwen/Qwen3-VL-8B-Instruct": (_qwen3_vl, 4096, 12288, 36, 32, False, LARGE_TOWER, LATE),
    "Qwen/Qwen3-VL-32B-Instruct": (_qwen3_vl, 5120, 25600, 64, 64, False, LARGE_TOWER, LATE),
    "Qwen/Qwen2.5-VL-3B-Instruct": (_qwen2_5_vl, 2048, 11008, 36, 16, 2, 151936, True),
    "Qwen/Qwen2.5-VL-7B-Instruct": (_qwen2_5_vl, 3584, 18944, 28, 28, 4, 152064, False),
    "llava-hf/llava-v1.6-vicuna-7b-hf": (_llava_next, 4096, 11008, 32, 32),
    "llava-hf/llava-v1.6-vicuna-13b-hf": (_llava_next, 5120, 13824, 40, 40),
}


def load_config(name_or_path: str) -> PretrainedConfig:
    """The configuration of a model; nothing else of it is read or downloaded.

    The sizes of the models in `KNOWN` are written down here, so planning for them, whatever revision they are
    pinned to, needs no network.

    Args:
        name_or_path: Local folder, hub id, which may be pinned to a revision, or shipped name.

    Raises:
        FileNotFoundError: If there is no config.json, or the hub cannot be reached.
        ValueError: If the family is not supported.
    """
    repository = name_or_path.partition("@")[0]
    if repository in KNOWN and not Path(name_or_path).exists():
        build, *sizes = KNOWN[repository]
        config: PretrainedConfig = build(*sizes)
        return config
    try:
        family_of(name_or_path)
        return AutoConfig.from_pretrained(resolve(name_or_path, [CONFIG]))
    except OSError as error:
        raise FileNotFoundError(
            f"Found no config.json of {name_or_path!r}, neither in a folder of that name nor on the hub. "
            "Without a network, put the model's config.json into a folder and give that folder as "
            "--model.init_args.verifier or --model.init_args.drafter; no weights are needed. "
            f"Known without a network: {', '.join(KNOWN)}."
        ) from error
