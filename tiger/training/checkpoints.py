"""Which pair a checkpoint belongs to, and the drafter weights that a later stage starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiger.drafting.routed import RoutedDrafter

VERIFIER_KEY = "verifier_fingerprint"


def fingerprint(model: nn.Module, count: int = 1024, exact: bool = False) -> str:
    """Names a model by the first weights of each parameter.

    Args:
        model: The model.
        count: Weights read of each parameter.
        exact: Whether to read the values; by default their signs, which no change of dtype alters.
    """
    digest = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        weights = parameter.detach().flatten()[:count].cpu()
        digest.update((weights.double() if exact else weights.signbit()).numpy().tobytes())
    return digest.hexdigest()[:16]


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


def check_weights(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Checks that a checkpoint fits a drafter.

    Raises:
        ValueError: Naming what differs.
    """
    missing = sorted(own.keys() - given.keys())
    unknown = sorted(name for name in given.keys() - own.keys() if not name.startswith("verifier."))
    reshaped = [n for n in own.keys() & given.keys() if own[n].shape != given[n].shape]
    if missing or unknown or reshaped:
        raise ValueError(
            "The checkpoint belongs to another pair: "
            f"{len(missing)} weights missing (first: {missing[:1]}), "
            f"{len(unknown)} unknown (first: {unknown[:1]}), "
            f"{len(reshaped)} of another shape (first: {sorted(reshaped)[:1]}). "
            "Set the verifier and drafter that the checkpoint was trained with."
        )


def load_stage(drafter: RoutedDrafter, path: Path, verifier: str) -> None:
    """Loads the drafter weights of an earlier stage's Lightning checkpoint.

    Args:
        drafter: Receives the weights.
        path: The checkpoint.
        verifier: Fingerprint of the verifier that this stage uses.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it belongs to another pair.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no checkpoint {path}. Run the earlier stage first, or correct init_from."
        )
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    check_verifier(checkpoint, verifier)
    prefix = "_drafter."
    weights = {
        name.removeprefix(prefix): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    check_weights(drafter.state_dict(), weights)
    drafter.load_state_dict(weights)
