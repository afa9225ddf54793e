"""Makes the random draws of training independent of validation, data loading and interruptions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class RandomState(Callback):
    """Carries the global random generators from one training step to the next, and through checkpoints.

    Whatever runs between two steps (validation, data loaders, a killed process) leaves no trace in the draws
    of training, so a resumed run draws what the uninterrupted one would have. Covers Python, numpy and torch;
    each process restores the state of rank zero, so draws that must differ between ranks need their own
    generator.
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The state after the last training step."""
        return {"state": self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state that the next training step starts from."""
        self.state = state_dict["state"]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Continues where the last training step ended."""
        if self.state is not None:
            restore(self.state)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the state for the next step; checkpoints are written after this."""
        self.state = capture()


def capture() -> dict[str, Any]:
    """State of every global generator, as plain numbers and tensors that load without pickle."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Sets every global generator to a state of `capture`; those of GPUs only if their number is the same."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([entry.cpu() for entry in state["cuda"]])
