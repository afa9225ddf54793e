"""Attention for draft heads: decoder layers of the Llama kind, sized like one of the verifier's.

A head calls `layer(hidden, mask, cache=cache, position_embeddings=rope(hidden, positions))` with the
`LlamaDecoderLayer` of transformers and `Rope` in this configuration; positions are one axis [B, T].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tiger.backbones.base import Backbone
from tiger.backbones.cache import BlockCache


def layer_config(verifier: Backbone, num_layers: int = 1, **changes: Any) -> LlamaConfig:
    """Sizes of a head's layers: those of the verifier's language model, with one axis of positions."""
    text = verifier.text_config
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    sizes = {
        "vocab_size": verifier.vocab_size,
        "hidden_size": verifier.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", heads),
        "head_dim": getattr(text, "head_dim", None) or verifier.hidden_size // heads,
        "rms_norm_eps": text.rms_norm_eps,
        "max_position_embeddings": verifier.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)},
    }
    return LlamaConfig(**sizes | changes, attn_implementation="sdpa")


def bare_layer(config: LlamaConfig) -> LlamaDecoderLayer:
    """A decoder layer without a norm before its attention, as EAGLE's."""
    layer = LlamaDecoderLayer(config, 0)
    layer.input_layernorm = nn.Identity()
    return layer


class Rope(LlamaRotaryEmbedding):
    """Rotary positions whose frequencies stay in float32 when the head's type changes."""

    inv_freq: Tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rope:
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self


def next_positions(cache: BlockCache, count: int) -> Tensor:
    """Positions [B, count] of the next places of each row: a head counts every token, visual ones too."""
    start = torch.tensor(cache.lengths, device=cache.device)
    return start[:, None] + torch.arange(count, device=cache.device)
