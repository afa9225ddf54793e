"""A training loader whose order is a pure function of seed and epoch, and which resumes inside an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


class ResumableLoader:
    """Yields shuffled batches; Lightning saves its state in every checkpoint and restores it on resume.

    Batches are counted where they are handed out, in the main process, so what workers have fetched ahead is
    neither lost nor repeated. No global random generator is touched.

    Args:
        dataset: Maps an index to an example, always the same one.
        batch_size: Examples per batch and process.
        collate_fn: Makes a batch of a list of examples.
        seed: Seed of the order.
        num_workers: Processes that load data.
        rank: Which of the processes this is.
        world_size: Number of training processes; they get equally many batches. A run may be resumed with
            another number, if batch_size times world_size stays the same.
        identity: Name of the data; a checkpoint made with other data is refused.

    Raises:
        ValueError: If there are fewer batches than processes.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        collate_fn: Callable[[list[Any]], Any],
        seed: int = 0,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        identity: str = "",
    ) -> None:
        assert isinstance(dataset, Sized)
        self.dataset, self.size = dataset, len(dataset)
        self.batch_size, self.collate_fn = batch_size, collate_fn
        self.seed, self.num_workers = seed, num_workers
        self.rank, self.world_size, self.identity = rank, world_size, identity
        self.epoch, self.taken = 0, 0
        self._resuming = False
        if not len(self):
            raise ValueError(
                f"{self.size} examples in batches of {batch_size} do not give each of {world_size} processes "
                "a batch. Use more examples or a smaller batch_size."
            )

    def __len__(self) -> int:
        """Batches of this process in a whole epoch, also right after a resume."""
        return -(-self.size // self.batch_size) // self.world_size

    @property
    def sampler(self) -> ResumableLoader:
        """Where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration yields; a new epoch starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.taken = epoch, 0

    def batches(self, epoch: int) -> list[list[int]]:
        """All batches of this process in an epoch, as dataset indices."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.size, generator=generator).split(self.batch_size)
        whole = len(self) * self.world_size
        return [indices.tolist() for indices in order[self.rank : whole : self.world_size]]

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of the epoch that have not been handed out yet."""
        self.taken = self.taken if self._resuming else 0
        self._resuming = False
        loader = DataLoader(
            self.dataset,
            batch_sampler=self.batches(self.epoch)[self.taken :],
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
            generator=torch.Generator(),  # or the base seed of the workers is drawn from the global generator
        )
        for batch in loader:
            self.taken += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, and what its order depends on."""
        return {"epoch": self.epoch, "taken": self.taken, **self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues behind the last batch that was handed out.

        Raises:
            ValueError: If the state belongs to another order of batches.
        """
        for name, value in self._order().items():
            if state.get(name) != value:
                raise ValueError(
                    f"The checkpoint was made with {name} = {state.get(name)!r}, the data module has "
                    f"{value!r}, so the order of batches differs. Resume with the same data settings, or "
                    "start a new run from the checkpoint's weights."
                )
        self.epoch, self.taken = state["epoch"], state["taken"]
        self._resuming = True

    def _order(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "seed": self.seed,
            "size": self.size,
            "global_batch_size": self.batch_size * self.world_size,
        }
