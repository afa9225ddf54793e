"""Low-rank adapters on the drafter's language model, by peft, which stays the plain model underneath."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from tiger.drafting.routed import RoutedDrafter

NAME = "drafter"
ATTENTION_AND_MLP = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Lora:
    """Adapters W + (alpha / rank) B A, of which only A and B are trained; B starts at zero.

    Attributes:
        rank: Rows of A.
        alpha: Scale of the update, relative to the rank.
        targets: Linear layers of the language model to adapt, by the last part of their names.
        dropout: Share of the adapter's inputs that are dropped in training.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: list[str] = field(default_factory=lambda: list(ATTENTION_AND_MLP))
    dropout: float = 0.0


torch.serialization.add_safe_globals([Lora])  # checkpoints hold it among the hyper-parameters


def add_adapters(drafter: RoutedDrafter, lora: Lora) -> None:
    """Puts adapters into the drafter's language model and freezes everything else of the backbone.

    Raises:
        ValueError: If an option is out of range, or a target is no linear layer of the language model.
    """
    drafter.backbone.model.requires_grad_(False)
    insert_adapters(drafter.backbone.model.get_decoder(), lora)


def insert_adapters(language_model: nn.Module, lora: Lora) -> None:
    """Puts adapters, which are trained, into a language model.

    Raises:
        ValueError: If an option is out of range, or a target is no linear layer of the language model.
    """
    if lora.rank < 1 or not 0 <= lora.dropout < 1:
        raise ValueError(f"lora needs rank >= 1 and 0 <= dropout < 1, got {lora.rank} and {lora.dropout}.")
    linear = {n.split(".")[-1] for n, m in language_model.named_modules() if isinstance(m, nn.Linear)}
    if not lora.targets or (unknown := [name for name in lora.targets if name not in linear]):
        given = ", ".join(unknown) if lora.targets else "(none)"
        raise ValueError(
            f"The lora targets {given} match nothing; the language model's linear layers are "
            f"{', '.join(sorted(linear))}."
        )
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        lora_dropout=lora.dropout,
    )
    inject_adapter_in_model(config, language_model, NAME)


@contextmanager
def without_adapters(drafter: RoutedDrafter) -> Iterator[None]:
    """Inside, the drafter computes as it did before adapters were added; for passes without gradients."""
    layers = _layers(drafter.backbone.model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """State of the plain model that computes what the adapted one does, which is left as it is.

    Only the adapted weights are copies, and those are on the CPU.
    """
    layers = _layers(model)
    state = {}
    for name, value in model.state_dict().items():
        path, _, leaf = name.rpartition(".")
        if ".lora_" in name:
            continue
        adapted = layers.get(path.removesuffix(".base_layer"))
        if adapted is not None and leaf == "weight":
            with torch.no_grad():
                value = (value + adapted.get_delta_weight(NAME).to(value.dtype)).cpu()
        state[re.sub(r"\.base_layer\.(\w+)$", r".\1", name)] = value
    return state


def fold_adapters(drafter: RoutedDrafter) -> None:
    """Adds the adapters into the weights and removes them, for good."""
    model = drafter.backbone.model
    for path, layer in _layers(model).items():
        layer.merge()
        model.set_submodule(path, layer.get_base_layer())
    del model.get_decoder().peft_config


def _layers(model: nn.Module) -> dict[str, LoraLayer]:
    """The adapted layers by their paths."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
