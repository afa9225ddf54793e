"""The distribution of accepted lengths during validation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from callbacks.run_folder import tensorboard
from tiger.decoding.records import Generation
from tiger.metrics.acceptance import AcceptanceMetrics

THRESHOLDS = (2, 4, 8)


class AcceptedLengthHistogram(Callback):
    """Logs how many drafted tokens the verifier accepts per round, over the whole validation split.

    Scalars (all higher is better): accept/length (AccLen), accept/ge_2, ge_4 and ge_8 (shares of rounds in
    [0, 1] with at least that many accepted tokens), accept/position_i (share of accepted tokens at position i
    of the block, once its predecessors were accepted). TensorBoard also gets the histogram accept/lengths.
    """

    def __init__(self) -> None:
        self.metrics = AcceptanceMetrics(1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Starts counting anew."""
        self.metrics = AcceptanceMetrics(pl_module.block_size).to(pl_module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Counts the rounds of a batch."""
        generations: list[Generation] = outputs
        self.metrics.update(generations)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the distribution, merged over all processes."""
        found = self.metrics.compute()
        if not found["rounds"]:
            return
        at_least = found["p_accept_ge"]
        scalars = {"accept/length": found["acclen"]}
        scalars |= {f"accept/ge_{n}": at_least[n] for n in THRESHOLDS if n in at_least}
        scalars |= {f"accept/position_{n}": rate for n, rate in found["accept_rate_by_position"].items()}
        pl_module.log_dict(scalars, batch_size=found["answers"], rank_zero_only=False)
        writer = tensorboard(trainer)
        if writer is not None and not trainer.sanity_checking:
            writer.add_histogram("accept/lengths", lengths(at_least, found["rounds"]), trainer.global_step)


def lengths(at_least: dict[int, float], rounds: int) -> np.ndarray:
    """Accepted length of each round [rounds], ascending, from the shares P(A >= n).

    Args:
        at_least: Share of rounds with at least n accepted tokens, for n = 1, 2, ...
        rounds: Number of rounds.
    """
    shares = [1.0, *(at_least[n] for n in sorted(at_least)), 0.0]
    counts = [round((high - low) * rounds) for high, low in pairwise(shares)]
    return np.repeat(np.arange(len(counts)), counts)
