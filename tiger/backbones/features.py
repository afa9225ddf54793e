"""What the layers of a language model are given, for drafting heads that read more than its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tiger.backbones.base import Backbone


def check_layers(backbone: Backbone, ids: Sequence[int]) -> None:
    """Checks that a model has the layers.

    Raises:
        ValueError: If it has not.
    """
    wrong = [index for index in ids if not 0 <= index < backbone.num_layers]
    if wrong:
        raise ValueError(
            f"The head reads what enters layers {list(ids)}, but the verifier has layers 0 to "
            f"{backbone.num_layers - 1}. Choose others, or take a head that was trained for this verifier."
        )


def with_features(backbone: Backbone, ids: Sequence[int], run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Runs a language model and records what enters some of its layers.

    Args:
        backbone: The model.
        ids: Layers; entry i stands for the hidden state before layer i, added visual features included.
        run: Runs the model.

    Returns:
        What `run` returned, hidden states [B, T, D], and the records side by side [B, T, F]; without ids the
        hidden states themselves.
    """
    if not ids:
        return (hidden := run()), hidden
    found: dict[int, Tensor] = {}

    def recorder(index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[index] = args[0] if args else kwargs["hidden_states"]

        return record

    layers = backbone.model.get_decoder().layers
    handles = [layers[i].register_forward_pre_hook(recorder(i), with_kwargs=True) for i in ids]
    try:
        hidden = run()
    finally:
        for handle in handles:
            handle.remove()
    return hidden, torch.cat([found[index] for index in ids], dim=-1)
