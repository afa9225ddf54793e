"""Several processes that share the prompts of a benchmark, as torchrun starts them."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed

LONGEST_WAIT = timedelta(days=7)  # processes end their shares at different times


class Shards:
    """This process among all; each takes every n-th prompt, the first one gathers and measures speed.

    Attributes:
        rank: Number of this process.
        world_size: Number of processes.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if self.world_size > 1:
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            distributed.init_process_group("gloo", timeout=LONGEST_WAIT)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that gathers."""
        return self.rank == 0

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.world_size > 1:
            distributed.barrier()

    def end(self) -> None:
        """Waits for all processes, which then know nothing of each other any more."""
        self.wait()
        if self.world_size > 1:
            distributed.destroy_process_group()
