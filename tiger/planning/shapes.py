"""The sizes of a model that memory and work depend on, read off its classes on the meta device."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, PretrainedConfig

from tiger.drafting.lora import Lora, insert_adapters


@dataclass(frozen=True)
class Shape:
    """Sizes of a vision-language model.

    Attributes:
        parameters: All parameters, a tied matrix once.
        vision: Parameters of the vision tower and its projector.
        embedding: Parameters of the embedding table.
        head: Parameters of the output matrix, whether tied or not.
        linear: Parameters of the matrices in the language layers, L layers together.
        layers: L.
        hidden: D.
        inner: Width I of the gated MLP.
        queries: Width of all query heads together, H x head size.
        keys: Width of all key heads together.
        heads: H.
        vocab: V.
        normed: Whether queries and keys are normalised.
        tower_patch: Parameters of the tower's matrices that see each patch.
        tower_token: Parameters of those that see each visual token (mergers, projector).
        tower_layers: Layers of the tower.
        tower_hidden: Its width.
        tower_inner: Width of its MLP.
        merge: Patches per visual token.
    """

    parameters: int
    vision: int
    embedding: int
    head: int
    linear: int
    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    heads: int
    vocab: int
    normed: bool
    tower_patch: int
    tower_token: int
    tower_layers: int
    tower_hidden: int
    tower_inner: int
    merge: int

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return self.keys < self.queries

    @property
    def router(self) -> int:
        """Parameters of a router for this drafter: W_q and W_v, 2 D^2, and the draft temperature."""
        return 2 * self.hidden**2 + 1


def build(config: PretrainedConfig) -> Any:
    """The model without weights: every parameter is on the meta device."""
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def shape_of(config: PretrainedConfig) -> Shape:
    """Sizes of the model that a configuration describes."""
    model = build(config)
    language, head = model.get_decoder(), model.get_output_embeddings()
    table = model.get_input_embeddings()
    attention, text, vision = language.layers[0].self_attn, config.get_text_config(), config.vision_config
    total = _count(model.parameters())
    inside = _count({*language.parameters(), *head.parameters()})
    tower = [(name, module) for name, module in model.named_modules() if _in_tower(name, language, module)]
    per_patch = [m for name, m in tower if re.search(r"blocks\.|layers\.|patch_embed", name)]
    per_token = [m for name, m in tower if not re.search(r"blocks\.|layers\.|patch_embed", name)]
    return Shape(
        parameters=total,
        vision=total - inside,
        embedding=table.weight.numel(),
        head=head.weight.numel(),
        linear=_count(m.weight for m in language.layers.modules() if isinstance(m, nn.Linear)),
        layers=len(language.layers),
        hidden=table.weight.shape[1],
        inner=text.intermediate_size,
        queries=attention.q_proj.out_features,
        keys=attention.k_proj.out_features,
        heads=text.num_attention_heads,
        vocab=head.weight.shape[0],
        normed=any(name.endswith("q_norm") for name, _ in attention.named_modules()),
        tower_patch=_count(m.weight for m in per_patch),
        tower_token=_count(m.weight for m in per_token),
        tower_layers=getattr(vision, "depth", None) or vision.num_hidden_layers,
        tower_hidden=vision.hidden_size,
        tower_inner=vision.intermediate_size,
        merge=getattr(vision, "spatial_merge_size", 1) ** 2,
    )


def adapter_parameters(config: PretrainedConfig, lora: Lora) -> int:
    """Parameters of the adapters on a drafter's language model, counted where they are put.

    Raises:
        ValueError: If an option is out of range, or a target matches nothing.
    """
    language_model = build(config).get_decoder()
    language_model.requires_grad_(False)
    with torch.device("meta"):
        insert_adapters(language_model, lora)
    return _count(p for p in language_model.parameters() if p.requires_grad)


def _in_tower(name: str, language: nn.Module, module: nn.Module) -> bool:
    matrix = isinstance(module, nn.Linear | nn.Conv2d | nn.Conv3d)
    return matrix and "language_model" not in name and "lm_head" not in name


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)
