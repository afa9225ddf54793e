"""What all draft heads share: the text that they read, aligned, and its bookkeeping during decoding.

A head drafts from the verifier's own hidden states. Features of accepted tokens always come from the
verifier; what a head predicted of them is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.cache import BlockCache
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import PhaseTimer
from tiger.drafting.base import Reading, TokenTree


@dataclass
class HeadText:
    """Text as a head reads it: place j holds what the verifier made of token j, and token j + 1 itself.

    Rows are padded on the right. The last place of a text that is going to be continued holds the feature of
    the token before the root, and the root.

    Attributes:
        features: What entered the verifier's `feature_layers` at token j [B, T, F].
        tokens: Ids of the tokens j + 1 [B, T].
        embeddings: Embeddings of the tokens j + 1 as the verifier read them [B, T, D], visual ones included.
        visual: Which of the tokens j + 1 are visual [B, T].
        lengths: Places of each row.
    """

    features: Tensor
    tokens: Tensor
    embeddings: Tensor
    visual: Tensor
    lengths: list[int]

    def last(self, values: Tensor) -> Tensor:
        """Entries [B, ...] of values [B, T, ...] at each row's last place."""
        rows = torch.arange(len(self.lengths), device=values.device)
        return values[rows, torch.tensor(self.lengths, device=values.device) - 1]


@dataclass
class HeadRow:
    """What one request has waiting to be read.

    Attributes:
        features: Features of decided tokens [T, F].
        tokens: Tokens behind each of them, the root last [T].
        embeddings: Their embeddings [T, D].
        visual: Which of them are visual [T].
    """

    features: Tensor
    tokens: Tensor
    embeddings: Tensor
    visual: Tensor


@dataclass
class HeadState:
    """Requests in flight.

    Attributes:
        sampling: How tokens are drawn.
        generators: One per request.
        reserve: Tokens per row to keep room for behind the prompt.
        rows: What waits to be read.
        cache: Keys and values of what the head has read; None for a head without attention.
        notes: What a method remembers of each request besides.
    """

    sampling: Sampling
    generators: list[torch.Generator]
    reserve: int
    rows: list[HeadRow] = field(default_factory=list)
    cache: BlockCache | None = None
    notes: list[Any] = field(default_factory=list)


class DraftHead(nn.Module, ABC):
    """A drafter that reads the verifier's features.

    The verifier's embeddings and vocabulary head are used, not copied, and not among the head's parameters.

    Args:
        verifier: The verifier whose states it reads.

    Attributes:
        method: Name of the method, as in files and configs.
        num_layers: Attention layers, which need a cache.
        feature_layers: Layers of the verifier whose inputs it reads; none for the final hidden states.
        draft_ids: Vocabulary ids that `score` scores [V']; None for all.
        settings: The options of the constructor, for saving.
    """

    method: ClassVar[str]
    num_layers: int = 1
    feature_layers: tuple[int, ...] = ()
    draft_ids: Tensor | None
    settings: dict[str, Any]

    def __init__(self, verifier: Backbone) -> None:
        super().__init__()
        self._verifier = (verifier,)  # in a tuple, so that its weights are not the head's
        self.register_buffer("draft_ids", None)

    @property
    def verifier(self) -> Backbone:
        """The verifier that the head belongs to."""
        return self._verifier[0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the head's weights."""
        return next(self.parameters()).dtype

    @property
    def feature_size(self) -> int:
        """Width F of the features."""
        return self.verifier.hidden_size * max(len(self.feature_layers), 1)

    def embed(self, ids: Tensor) -> Tensor:
        """The verifier's embeddings [..., D] of token ids [...], in the head's type."""
        return self.verifier.embed(ids).to(self.dtype)

    def score(self, hidden: Tensor, depths: Tensor | None = None) -> Tensor:
        """Logits of the head's hidden states; by default the verifier's, over all ids.

        Args:
            hidden: Hidden states [..., D].
            depths: Tokens between root and prediction [...], for heads to which they matter; by default the
                place on the axis before the last, as `unroll` returns them.

        Returns:
            Logits [..., V'].
        """
        return self.verifier.logits(hidden.to(self.verifier.dtype))

    def restrict(self, ids: Sequence[int]) -> None:
        """Sets the ids of the draft vocabulary, before training.

        Raises:
            ValueError: If the method has none, or their number is not its size.
        """
        raise ValueError(f"Head {self.method!r} drafts from the whole vocabulary; it cannot be restricted.")

    @abstractmethod
    def unroll(self, text: HeadText, roots: Tensor, depth: int) -> Tensor:
        """Hidden states behind roots, for training.

        Args:
            text: Prompts and answers.
            roots: Places j whose token j + 1 is a root [B, A].
            depth: Tokens S to predict behind each root.

        Returns:
            Hidden states [B, A, S, D]; entry s, scored, predicts the token s + 1 behind the root.
        """

    @abstractmethod
    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Proposes branches of at most `block_size` tokens behind the text, which is new."""

    def num_nodes(self, block_size: int) -> int:
        """The most tokens that a round proposes to a request: those of a chain, if a method says no more."""
        return block_size

    def scratch(self, block_size: int) -> int:
        """Places that drafting needs in the head's cache, besides the text."""
        return block_size

    def begin(
        self, prompts: Sequence[Prompt], reserve: int, sampling: Sampling, generators: list[torch.Generator]
    ) -> HeadState:
        """Opens the requests; the prompts come with the first `observe`."""
        return HeadState(sampling, list(generators), reserve)

    def observe(self, state: HeadState, reading: Reading) -> None:
        """Takes the features of the prompts, or of the tokens that were kept."""
        if (batch := reading.prompt) is None:
            kept = [torch.tensor(row, device=reading.features.device) for row in reading.kept]
            for row, places, features, tokens in zip(
                state.rows, kept, reading.features, reading.tokens, strict=True
            ):
                row.features, row.tokens = features[places], tokens[places[1:]]
                row.embeddings = self.verifier.embed(row.tokens)
                row.visual = torch.zeros_like(row.tokens, dtype=torch.bool)
            return
        for index, end in enumerate(batch.lengths):
            behind = slice(1, end)
            state.rows.append(
                HeadRow(
                    reading.features[index, :end],
                    reading.tokens[index, behind],
                    batch.embeddings[index, behind],
                    batch.visual[index, behind],
                )
            )

    def commit(self, state: HeadState, decided: list[list[int]]) -> None:
        """Takes the new roots; accepted tokens came with `observe`."""
        for row, tokens in zip(state.rows, decided, strict=True):
            root = torch.tensor(tokens[-1:], device=row.tokens.device)
            row.tokens = torch.cat([row.tokens, root])
            row.embeddings = torch.cat([row.embeddings, self.verifier.embed(root)])
            row.visual = torch.cat([row.visual, row.visual.new_zeros(1)])

    def propose(self, state: HeadState, block_size: int, timer: PhaseTimer) -> TokenTree:
        """Reads what is new and drafts."""
        with timer("draft"):
            text = self.text(state.rows)
            if self.num_layers and state.cache is None:
                room = max(text.lengths) + state.reserve + self.scratch(block_size)
                state.cache = BlockCache(self.num_layers, len(state.rows), room, text.features.device)
            return self.draft(state, text, block_size)

    def text(self, rows: list[HeadRow]) -> HeadText:
        """Rows of any length as one padded text in the head's type."""
        return HeadText(
            pad_sequence([row.features for row in rows], batch_first=True).to(self.dtype),
            pad_sequence([row.tokens for row in rows], batch_first=True),
            pad_sequence([row.embeddings for row in rows], batch_first=True).to(self.dtype),
            pad_sequence([row.visual for row in rows], batch_first=True),
            [len(row.tokens) for row in rows],
        )

    def select_rows(self, state: HeadState, rows: list[int]) -> None:
        """Keeps the given requests."""
        for name in ("rows", "generators", "notes"):
            if values := getattr(state, name):
                setattr(state, name, [values[row] for row in rows])
        if state.cache is not None:
            state.cache.select_rows(rows)
