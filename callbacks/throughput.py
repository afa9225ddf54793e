"""Speed and memory of training."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

GIB = 2**30


class ThroughputMonitor(Callback):
    """Logs training speed and peak memory of this process.

    speed/examples_per_second and speed/tokens_per_second (response tokens) are means over the time since the
    last log, validation excluded; memory/peak_rss_gib and memory/peak_cuda_gib are peaks since the start.

    Args:
        every_n_batches: Batches between two logs.
    """

    def __init__(self, every_n_batches: int = 20) -> None:
        if every_n_batches < 1:
            raise ValueError(f"every_n_batches is {every_n_batches}; log after one batch or more.")
        self.every_n_batches = every_n_batches
        self._reset()

    def _reset(self) -> None:
        self.batches, self.examples, self.tokens, self.seconds = 0, 0, 0, 0.0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Starts the clock; the time that the data loader took is not part of it."""
        self.started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts the batch and logs when it is time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self.started
        self.batches += 1
        self.examples += len(batch.examples)
        self.tokens += sum(len(example.response) for example in batch.examples)
        if self.batches < self.every_n_batches:
            return
        values = {
            "speed/examples_per_second": self.examples / self.seconds,
            "speed/tokens_per_second": self.tokens / self.seconds,
            **peak_memory(),
        }
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        self._reset()


def peak_memory() -> dict[str, float]:
    """Peak memory of this process in GiB, under the names it is logged by."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there, KiB elsewhere
    peaks = {"memory/peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB}
    if torch.cuda.is_available():
        peaks["memory/peak_cuda_gib"] = torch.cuda.max_memory_allocated() / GIB
    return peaks
