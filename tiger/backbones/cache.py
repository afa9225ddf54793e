"""A preallocated key-value cache with one length per row.

Appending writes in place, rejecting tokens moves a length, and nothing is concatenated or copied per token.
The verifier, the drafter and the autoregressive baseline all use it, so comparisons between them are fair.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class BlockLayer(DynamicLayer):
    """Keys and values of one layer: two slabs [B, H, capacity, head_dim], allocated at first use."""

    is_initialized: bool

    def __init__(self, owner: BlockCache) -> None:
        super().__init__()
        self.owner = owner

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [B, H, T, head_dim] behind each row's committed length; returns everything up to there."""
        owner, count = self.owner, key_states.shape[2]
        if not self.is_initialized:
            shape = (owner.num_rows, key_states.shape[1], owner.capacity)
            self.keys = key_states.new_zeros(*shape, key_states.shape[3])
            self.values = value_states.new_zeros(*shape, value_states.shape[3])
            self.is_initialized = True
        end = owner.max_length + count
        if owner.is_uniform:
            self.keys[:, :, owner.max_length : end] = key_states
            self.values[:, :, owner.max_length : end] = value_states
        else:
            rows, slots = owner.slots(count)
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Longest committed length."""
        return self.owner.max_length


class BlockCache(Cache):
    """Preallocated cache of a batch whose rows grow independently.

    A forward pass writes its T tokens behind the committed tokens of each row; they stay invisible to later
    passes until `commit` counts them in. Rejecting tokens is therefore free.

    Args:
        num_layers: Layers of the language model.
        batch_size: Rows B.
        capacity: Largest number of tokens of a row, uncommitted ones included.
        device: Device of the lengths.
    """

    def __init__(
        self, num_layers: int, batch_size: int, capacity: int, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(layers=[BlockLayer(self) for _ in range(num_layers)])
        self.num_rows = batch_size
        self.capacity = capacity
        self.device = torch.device(device)
        self.lengths = [0] * batch_size
        self._slots: tuple[Tensor, Tensor] | None = None

    @property
    def max_length(self) -> int:
        """Longest committed length of the batch."""
        return max(self.lengths)

    @property
    def is_uniform(self) -> bool:
        """Whether every row has the same length, so that no mask or scatter is needed."""
        return min(self.lengths) == max(self.lengths)

    def commit(self, counts: list[int]) -> None:
        """Counts the first tokens of the last pass in, one count per row (negative counts roll back)."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self._slots = None

    def gather(self, paths: list[list[int]]) -> None:
        """Moves tokens of the last pass to its front, before they are committed; the others are lost.

        Args:
            paths: Places in the pass of each row's tokens to keep, ascending.
        """
        if all(path == list(range(len(path))) for path in paths):
            return
        width = max(map(len, paths))
        places = [path + list(range(len(path), width)) for path in paths]
        rows, target = self.slots(width)
        source = target[:, :1] + torch.tensor(places, device=self.device)
        for layer in self.layers:
            layer.keys[rows, :, target] = layer.keys[rows, :, source]
            layer.values[rows, :, target] = layer.values[rows, :, source]

    def require(self, count: int) -> None:
        """Checks that `count` more tokens fit.

        Raises:
            ValueError: If they do not.
        """
        if self.max_length + count > self.capacity:
            raise ValueError(
                f"The cache holds {self.capacity} tokens but {self.max_length + count} are needed. "
                "Shorten the prompt, lower max_new_tokens or block_size, or draft a smaller tree."
            )

    def slots(self, count: int) -> tuple[Tensor, Tensor]:
        """Row and slot indices [B, count] of the next `count` tokens of each row; all layers share them."""
        if self._slots is None or self._slots[0].shape[1] != count:
            rows = torch.arange(self.num_rows, device=self.device)[:, None].expand(-1, count)
            start = torch.tensor(self.lengths, device=self.device)
            self._slots = rows, start[:, None] + torch.arange(count, device=self.device)
        return self._slots

    def mask(self, count: int, tree: Tensor | None = None) -> Tensor | None:
        """Attention mask [B, 1, count, max_length + count] (True: attend) for the next `count` tokens.

        Args:
            count: New tokens per row.
            tree: Ancestor mask [count, count] or [B, count, count] among the new tokens; causal by default.
                It may have fewer rows, where only some of these tokens ask.

        Returns:
            The mask, a row for each token that asks, or None where attending to everything is right.
        """
        if count == 1 and self.is_uniform:
            return None
        width = self.max_length + count
        if self.is_uniform and tree is None:
            mask = torch.ones(count, width, dtype=torch.bool, device=self.device).tril(self.max_length)
            return mask.expand(self.num_rows, 1, -1, -1)
        if tree is None:
            tree = torch.ones(count, count, dtype=torch.bool, device=self.device).tril()
        tree = tree.expand(self.num_rows, -1, -1)
        asking = tree.shape[1]
        if self.is_uniform:
            past = tree.new_ones(1, 1, 1).expand(self.num_rows, asking, self.max_length)
            return torch.cat([past, tree], dim=2)[:, None]
        lengths = torch.tensor(self.lengths, device=self.device)
        columns = torch.arange(width, device=self.device)
        mask = (columns < lengths[:, None])[:, None, :].expand(-1, asking, -1).clone()
        index = lengths[:, None] + torch.arange(count, device=self.device)
        return mask.scatter_(2, index[:, None].expand(-1, asking, -1), tree)[:, None]

    def select_rows(self, rows: list[int]) -> None:
        """Keeps the given rows of the batch, in that order (finished requests leave it)."""
        index = torch.tensor(rows, device=self.device)
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]
        self.lengths = [self.lengths[row] for row in rows]
        self.num_rows = len(rows)
        self._slots = None
