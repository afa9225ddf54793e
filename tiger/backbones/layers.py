"""Runs the layers of a language model in pieces, so that tokens may leave between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tiger.backbones.attention import causal_weights, explicit_mask
from tiger.backbones.base import Backbone


def run_layers(
    backbone: Backbone,
    layers: range,
    hidden: Tensor,
    position_ids: Tensor,
    mask: Tensor | None,
    cache: Cache,
    visual: Tensor | None = None,
    deepstack: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Runs consecutive layers as `Backbone.run` runs all of them.

    Args:
        backbone: The model.
        layers: Indices of the layers.
        hidden: What the first of them reads [B, T, D].
        position_ids: [A, B, T].
        mask: [B, 1, T, past + T], bool (True: attend); None attends to everything.
        cache: Cache to read and extend.
        visual: Bool mask [B, T] of visual tokens, needed with deepstack rows.
        deepstack: Rows [number of visual tokens, D] per deepstack layer of the model.

    Returns:
        Hidden states [B, T, D] behind these layers, and behind the final norm if the model's last layer is
        among them; and what the last of these layers read [B, T, D].
    """
    decoder = backbone.model.get_decoder()
    mask = explicit_mask(mask, backbone.text_config._attn_implementation, hidden.dtype)
    rope, before = _rope(backbone, hidden, position_ids), hidden
    for index in layers:
        before = hidden
        hidden = decoder.layers[index](
            hidden, attention_mask=mask, cache=cache, use_cache=True, position_embeddings=rope
        )
        if index < len(deepstack):
            hidden = hidden.clone()
            hidden[visual] += deepstack[index].to(hidden.dtype)
    return decoder.norm(hidden) if layers.stop == backbone.num_layers else hidden, before


def layer_attention(backbone: Backbone, index: int, hidden: Tensor, position_ids: Tensor) -> Tensor:
    """Causal attention weights [B, T, T] of one layer, averaged over heads.

    Args:
        backbone: The model.
        index: Index of the layer.
        hidden: What the layer reads [B, T, D].
        position_ids: [A, B, T].
    """
    layer = backbone.model.get_decoder().layers[index]
    cosine, sine = _rope(backbone, hidden, position_ids)
    normed = layer.input_layernorm(hidden)
    rows = [  # one at a time, as the weights of all heads are large
        causal_weights(layer.self_attn, normed[[row]], (cosine[[row]], sine[[row]])).mean(1)
        for row in range(len(hidden))
    ]
    return torch.cat(rows)


def _rope(backbone: Backbone, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    positions = position_ids if backbone.num_axes > 1 else position_ids[0]
    cosine, sine = backbone.model.get_decoder().rotary_emb(hidden, positions)
    return cosine, sine
