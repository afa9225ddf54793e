"""Stops a run whose loss is no longer a number."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class StopOnBadLoss(Callback):
    """Raises before the backward pass of a NaN or infinite loss, so weights and checkpoints stay good."""

    def __init__(self) -> None:
        self.example_ids: list[str] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remembers which examples the loss belongs to."""
        self.example_ids = [example.prompt.id for example in batch.examples]

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Checks the loss.

        Raises:
            ValueError: If it is not finite on any rank; naming the step, the examples and what to try. All
                ranks stop: one that went on would wait for the others.
        """
        good = bool(torch.isfinite(loss).all())
        if trainer.strategy.reduce_boolean_decision(good, all=True):
            return
        checkpoint = getattr(trainer.checkpoint_callback, "last_model_path", "")
        resume = (
            f"The last good checkpoint is {checkpoint}."
            if checkpoint
            else "No checkpoint was written before."
        )
        value, ids = float(loss.detach().float().mean()), ", ".join(self.example_ids)
        if good:
            raise ValueError(f"Another rank's loss is not finite at step {trainer.global_step}. {resume}")
        raise ValueError(
            f"The loss is {value} at step {trainer.global_step} on the examples {ids}. {resume} "
            "Try a lower learning rate, `--trainer.gradient_clip_val 1`, `--trainer.precision 32-true`, or "
            "leave these examples out; resume with `--ckpt_path last`."
        )
