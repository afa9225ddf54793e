"""Importance of visual tokens: how much attention a vision tower pays to them in one of its layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

Result = TypeVar("Result")


def weigh(
    attention: nn.Module, weights: Callable[..., Tensor], run: Callable[[], Result]
) -> tuple[Result, Tensor]:
    """Runs a vision tower and records what one of its attention modules makes of its input.

    Weights are recomputed from the module's input, so the fused kernel stays in use.

    Args:
        attention: The attention module.
        weights: Called with the module and what it is called with.
        run: Runs the tower.

    Returns:
        What `run` returned, and what `weights` did.
    """
    found: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch.no_grad():
            found.append(weights(module, *args, **kwargs))

    handle = attention.register_forward_pre_hook(record, with_kwargs=True)
    try:
        result = run()
    finally:
        handle.remove()
    return result, found[0]


def received(
    module: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any, **_: Any
) -> Tensor:
    """Attention that each patch receives from all patches of its frame [P], mean of heads and patches.

    For the towers of Qwen, which have no class token. `cu_seqlens` are the bounds of the frames.
    """
    shape = (len(hidden_states), 3, module.num_heads, -1)
    query, key, _ = module.qkv(hidden_states).reshape(shape).unbind(1)
    query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    bounds = cu_seqlens.tolist()
    frames = [
        _attention(query[start:stop], key[start:stop], module.scaling).mean((0, 1))
        for start, stop in pairwise(bounds)
    ]
    return torch.cat(frames)


def from_class_token(module: Any, hidden_states: Tensor, **_: Any) -> Tensor:
    """Attention of the class token to each patch [tiles, P], mean of heads; for the tower of CLIP."""
    shape = (*hidden_states.shape[:2], module.num_heads, -1)
    query = module.q_proj(hidden_states[:, :1]).view(len(hidden_states), 1, *shape[2:])
    key = module.k_proj(hidden_states).view(shape)
    return _attention(query, key, module.scale)[:, :, 0, 1:].mean(1)


def _attention(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Attention weights [..., H, Q, P] of queries [..., Q, H, C] over keys [..., P, H, C]."""
    scores = query.transpose(-2, -3) @ key.transpose(-2, -3).transpose(-1, -2)
    return (scores.float() * scale).softmax(-1)
