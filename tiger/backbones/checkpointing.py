"""Recomputes language layers in the backward pass in place of keeping what they computed.

Transformers' own gradient checkpointing drops the cache, which training passes continue from one another.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache

from tiger.backbones.base import Backbone


def checkpoint_layers(backbone: Backbone) -> None:
    """Makes every language layer keep its input and its keys and values only, when gradients are asked for.

    The state's names and what is computed stay the same. Calling it again changes nothing.
    """
    for layer in backbone.model.get_decoder().layers:
        # A method, not a closure: a deep copy of the model then runs its own layers.
        layer.forward = MethodType(_forward, layer)


def _forward(layer: Any, hidden: Tensor, *args: Any, cache: Cache | None = None, **kwargs: Any) -> Any:
    """Stands for the forward pass of a layer; a pass without gradients is left alone."""
    forward = type(layer).forward
    if not torch.is_grad_enabled():
        return forward(layer, hidden, *args, cache=cache, **kwargs)
    if cache is None:
        return checkpoint(forward, layer, hidden, *args, use_reentrant=False, **kwargs)
    index = layer.self_attn.layer_idx
    past = copy.copy(cache.layers[index])

    def run(hidden: Tensor) -> tuple[Any, Tensor, Tensor]:
        # A fork, since the pass is run twice and each run appends its keys and values.
        fork = copy.copy(cache)
        fork.layers = [*cache.layers[:index], copy.copy(past), *cache.layers[index + 1 :]]
        output = forward(layer, hidden, *args, cache=fork, **kwargs)
        filled.append(fork.layers[index])
        return output, fork.layers[index].keys, fork.layers[index].values

    filled: list[Any] = []
    output, keys, values = checkpoint(run, hidden, use_reentrant=False)
    cache.layers[index] = filled[0]
    cache.layers[index].keys, cache.layers[index].values = keys, values
    return output
