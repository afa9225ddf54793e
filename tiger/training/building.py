"""Builds the drafter that is going to learn, as the options of a task say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiger.backbones.checkpointing import checkpoint_layers
from tiger.backbones.loading import check_model
from tiger.drafting.lora import Lora, add_adapters
from tiger.drafting.routed import RoutedDrafter
from tiger.drafting.saving import check_drafter, load_drafter
from tiger.training.checkpoints import check_checkpoint, load_stage


def check(options: Any) -> None:
    """Checks that the verifier and what the drafter starts from are there; loads nothing.

    Raises:
        FileNotFoundError: If a folder, a file of it or the checkpoint is missing.
        ValueError: If a model's family is not supported.
    """
    check_model(options.verifier)
    check_drafter(options.drafter)
    if options.init_from:
        check_checkpoint(Path(options.init_from))


def load(options: Any) -> RoutedDrafter:
    """The drafter that the options of a task name, with their routing."""
    names = ("selector", "layout", "query", "num_routed")
    return load_drafter(options.drafter, **{name: options[name] for name in names})


def prepare(drafter: RoutedDrafter, options: Any, lora: Lora | None, verifier_mark: str) -> RoutedDrafter:
    """Loads an earlier stage, adds adapters, and freezes what is not to learn.

    Args:
        drafter: The drafter.
        options: Options of a `DraftTask`.
        lora: Its adapters.
        verifier_mark: Fingerprint of the verifier, which the earlier stage must have learnt from.

    Returns:
        The same drafter, in training mode.

    Raises:
        ValueError: If the earlier stage had another verifier or does not fit.
    """
    if options.init_from:
        load_stage(drafter, Path(options.init_from), verifier_mark)
    drafter.requires_grad_(True)
    drafter.log_draft_temperature.requires_grad_(False)
    if lora is not None:
        add_adapters(drafter, lora)
    if options.gradient_checkpointing:
        checkpoint_layers(drafter.backbone)
    for parameter in drafter.backbone.vision_parameters():
        parameter.requires_grad_(options.train_vision)
    for parameter in drafter.backbone.unused_parameters():  # DDP would wait for their gradients
        parameter.requires_grad_(False)
    return drafter.train()
