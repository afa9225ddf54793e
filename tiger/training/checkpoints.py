"""Which pair a checkpoint belongs to, and the drafter weights that a later stage starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiger.drafting.lora import Lora, add_adapters, fold_adapters
from tiger.drafting.routed import RoutedDrafter

STAGE_KEY, VERIFIER_KEY, LORA_KEY = "stage", "verifier_fingerprint", "lora"
SECONDS_KEY = "training_seconds"


def fingerprint(model: nn.Module, count: int = 1024, exact: bool = False) -> str:
    """Names a model by the first weights of each parameter; a quantized model has a name of its own.

    Args:
        model: The model.
        count: Weights read of each parameter.
        exact: Whether to read the values; by default their signs, which no change of dtype alters.
    """
    digest = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        first = parameter.detach().flatten()[:count].cpu()
        if first.is_floating_point():
            first = first.double() if exact else first.signbit()
        digest.update(first.numpy().tobytes())
    return digest.hexdigest()[:16]


def check_stage(checkpoint: Mapping[str, Any], stage: str) -> None:
    """Checks that a run may be resumed from a checkpoint, whose weights fit other stages as well.

    Raises:
        ValueError: If another stage wrote it.
    """
    if (found := checkpoint.get(STAGE_KEY, stage)) != stage:
        raise ValueError(
            f"The checkpoint belongs to another stage: {found} wrote it, this run is {stage}. To start from "
            "its drafter, give it as init_from in place of ckpt_path."
        )


def check_verifier(checkpoint: Mapping[str, Any], verifier: str) -> None:
    """Checks that a checkpoint's drafter learnt from the verifier with this fingerprint.

    Raises:
        ValueError: If it learnt from another one.
    """
    if (found := checkpoint.get(VERIFIER_KEY, verifier)) != verifier:
        raise ValueError(
            f"The checkpoint belongs to another pair: its drafter learnt from verifier {found}, this run has "
            f"{verifier} (fingerprints of the weights). Set the verifier that it was trained with."
        )


def check_weights(own: Mapping[str, Tensor], given: Mapping[str, Tensor], needed: Set[str]) -> None:
    """Checks that a checkpoint fits a drafter.

    Args:
        own: All weights of the drafter or the task.
        given: Weights of the checkpoint.
        needed: Names that it must hold.

    Raises:
        ValueError: Naming what differs.
    """
    missing = sorted(needed - given.keys())
    unknown = sorted(name for name in given.keys() - own.keys() if not name.startswith("verifier."))
    reshaped = [n for n in own.keys() & given.keys() if own[n].shape != given[n].shape]
    if missing or unknown or reshaped:
        raise ValueError(
            "The checkpoint belongs to another pair: "
            f"{len(missing)} weights missing (first: {missing[:1]}), "
            f"{len(unknown)} unknown (first: {unknown[:1]}), "
            f"{len(reshaped)} of another shape (first: {sorted(reshaped)[:1]}). "
            "Set the verifier, drafter and lora that the checkpoint was trained with."
        )


def check_checkpoint(path: Path) -> None:
    """Checks that the checkpoint of an earlier stage is there.

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no checkpoint {path}. Run the earlier stage first, or correct init_from."
        )


def load_stage(drafter: RoutedDrafter, path: Path, verifier: str) -> None:
    """Loads the drafter weights of an earlier stage's Lightning checkpoint, its adapters folded in.

    Args:
        drafter: Receives the weights.
        path: The checkpoint.
        verifier: Fingerprint of the verifier that this stage uses.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it belongs to another pair.
    """
    check_checkpoint(path)
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    check_verifier(checkpoint, verifier)
    prefix = "_drafter."
    weights = {
        name.removeprefix(prefix): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    lora = checkpoint.get(LORA_KEY)
    if lora:
        add_adapters(drafter, Lora(**lora))
    language = {id(parameter) for parameter in drafter.backbone.model.get_decoder().parameters()}
    learnt = {
        name
        for name, parameter in drafter.named_parameters(remove_duplicate=False)
        if id(parameter) in language and parameter.requires_grad
    }
    check_weights(drafter.state_dict(), weights, learnt)
    drafter.load_state_dict(weights, strict=False)
    if lora:
        fold_adapters(drafter)
