"""How much the router moves during validation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from tiger.decoding.records import Generation


class RouteChange(Callback):
    """Logs router/changed: the share of routed tokens in [0, 1] that the round before had not.

    0 is a router that shows the same tokens whatever is being written, as a fixed selection would. Nothing is
    logged where no answer has two rounds with a route.
    """

    def __init__(self) -> None:
        self.changed, self.routed = 0, 0

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts counting anew."""
        self.changed, self.routed = 0, 0

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Counts the routed tokens of a batch behind each answer's first round."""
        generations: list[Generation] = outputs
        for generation in generations:
            routes = [set(entry.route) for entry in generation.rounds if entry.route]
            self.changed += sum(len(route - before) for before, route in pairwise(routes))
            self.routed += sum(map(len, routes[1:]))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the share over all processes."""
        counts = torch.tensor([self.changed, self.routed], dtype=torch.float64, device=pl_module.device)
        changed, routed = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        if routed:
            pl_module.log("router/changed", changed / routed, rank_zero_only=False)
