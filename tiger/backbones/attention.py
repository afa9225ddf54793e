"""Attention of a language model: masks that every implementation reads alike, and where its layers look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def explicit_mask(mask: Tensor | None, implementation: str, dtype: torch.dtype) -> Tensor | None:
    """The mask as an attention implementation takes it.

    Eager attention adds the mask to the scores, so a bool mask would be silently wrong there.
    """
    if mask is None or mask.dtype != torch.bool or implementation != "eager":
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def record_attention(layers: Sequence[Any], power: float, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Runs a model from its beginning and records where some of its layers look.

    Attention weights are recomputed from the layers' inputs, so the fused kernel stays in use.

    Args:
        layers: Decoder layers to average over.
        power: Exponent of each head's attention.
        run: Runs the model, without a past.

    Returns:
        What `run` returned, and attention to that power [B, T, T], averaged over heads and layers.
    """
    attention = torch.zeros(())

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal attention
        heads = causal_weights(module, kwargs["hidden_states"], kwargs["position_embeddings"])
        attention = attention + heads.pow(power).mean(1)

    handles = [layer.self_attn.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        result = run()
    finally:
        for handle in handles:
            handle.remove()
    return result, attention / len(layers)


def causal_weights(module: Any, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Causal attention weights [B, H, T, T] of one attention module of the Llama lineage."""
    shape = (*hidden.shape[:2], -1, module.head_dim)
    query, key = module.q_proj(hidden).view(shape), module.k_proj(hidden).view(shape)
    if hasattr(module, "q_norm"):  # Qwen3 normalises queries and keys
        query, key = module.q_norm(query), module.k_norm(key)
    query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *rope)
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = (query @ key.transpose(2, 3)).float() * module.scaling
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)
