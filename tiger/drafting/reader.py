"""A language model's reading position in a batch of growing texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs, assemble
from tiger.backbones.cache import BlockCache


@dataclass
class Reader:
    """What has been read of each row, and which decided tokens wait to be read.

    Attributes:
        cache: Keys and values of the tokens read.
        next_positions: Position of the next token of each row.
        pending: Decided tokens not yet in the cache, the root last.
    """

    cache: BlockCache
    next_positions: list[int]
    pending: list[list[int]] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        backbone: Backbone,
        inputs: Sequence[ModelInputs],
        banks: Sequence[VisualBank],
        rows: Sequence[Tensor],
        reserve: int,
        answers: Sequence[list[int]] | None = None,
        multiple: int = 1,
    ) -> tuple[Reader, Tensor]:
        """Reads prompts with the given bank rows at the image's place, and the answers so far.

        Args:
            backbone: The model that reads.
            inputs: The prompts.
            banks: Their visual banks.
            rows: Bank rows to show per request.
            reserve: Tokens per row to keep room for.
            answers: Decided tokens of each row.
            multiple: The size of the cache is rounded up to a multiple of so many tokens.

        Returns:
            The reader, and the hidden state [B, D] of each row's last token.
        """
        device = backbone.device
        texts = [backbone.embed(entry.ids) for entry in inputs]
        suffixes = [
            backbone.embed(torch.tensor(a, dtype=torch.long, device=device)) for a in answers or ()
        ] or None
        batch = assemble(inputs, banks, texts, rows, suffixes)
        capacity = -(-(max(batch.lengths) + reserve) // multiple) * multiple
        cache = backbone.new_cache(len(inputs), capacity)
        hidden = backbone.run_assembled(batch, cache)
        cache.commit(batch.lengths)
        last = torch.tensor(batch.lengths, device=device) - 1
        sizes = [len(a) for a in answers] if answers else [0] * len(inputs)
        positions = [entry.next_position + size for entry, size in zip(inputs, sizes, strict=True)]
        reader = cls(cache, positions, [[] for _ in inputs])
        return reader, hidden[torch.arange(len(inputs), device=device), last]

    def append(self, decided: list[list[int]]) -> None:
        """Queues decided tokens."""
        self.pending = [old + new for old, new in zip(self.pending, decided, strict=True)]

    def read(self, backbone: Backbone, keep_root: bool) -> Tensor:
        """Reads the pending tokens.

        Args:
            backbone: The model that reads.
            keep_root: Whether the last token stays in the cache; otherwise it remains pending.

        Returns:
            Hidden state [B, D] of each row's last pending token.
        """
        sizes = [len(tokens) for tokens in self.pending]
        width = max(sizes)
        padded = [tokens + [0] * (width - len(tokens)) for tokens in self.pending]
        hidden = self.step(backbone, torch.tensor(padded, device=backbone.device))
        ends = torch.tensor([size - 1 for size in sizes], device=hidden.device)
        last = hidden[torch.arange(len(sizes), device=hidden.device), ends]
        self.commit(sizes if keep_root else [size - 1 for size in sizes])
        self.pending = [tokens[len(tokens) if keep_root else -1 :] for tokens in self.pending]
        return last

    def step(self, backbone: Backbone, tokens: Tensor) -> Tensor:
        """Hidden states [B, T, D] of tokens [B, T] behind what has been read; commits nothing."""
        count = tokens.shape[1]
        start = torch.tensor(self.next_positions, device=tokens.device)
        positions = (start[:, None] + torch.arange(count, device=tokens.device)).expand(
            backbone.num_axes, -1, -1
        )
        self.cache.require(count)
        return backbone.run(backbone.embed(tokens), positions, self.cache.mask(count), self.cache)

    def chain(self, backbone: Backbone, count: int) -> Callable[[Tensor], Tensor]:
        """Makes the positions and masks of the next `count` tokens once, for reading them one by one.

        Returns:
            A function from tokens [B] to their hidden states [B, D], to be called at most `count` times; each
            call counts its token in.
        """
        self.cache.require(count)
        start, past = torch.tensor(self.next_positions, device=backbone.device), self.cache.max_length
        positions = start[:, None] + torch.arange(count, device=backbone.device)
        positions = positions.expand(backbone.num_axes, -1, -1)
        mask = None if self.cache.is_uniform else self.cache.mask(count)
        ones = [1] * len(self.next_positions)

        def read(tokens: Tensor) -> Tensor:
            index = self.cache.max_length - past
            visible = None if mask is None else mask[:, :, index : index + 1, : past + index + 1]
            step = positions[:, :, index : index + 1]
            hidden = backbone.run(backbone.embed(tokens[:, None]), step, visible, self.cache)
            self.commit(ones)
            return hidden[:, 0]

        return read

    def commit(self, counts: list[int]) -> None:
        """Counts text tokens of the last pass in (negative counts roll back)."""
        self.cache.commit(counts)
        self.next_positions = [p + n for p, n in zip(self.next_positions, counts, strict=True)]

    def select_rows(self, rows: list[int]) -> None:
        """Keeps the given rows."""
        self.cache.select_rows(rows)
        self.next_positions = [self.next_positions[row] for row in rows]
        self.pending = [self.pending[row] for row in rows]
