"""The verifier's side of decoding: one prefill, then passes over decided and proposed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiger.backbones.base import Backbone, ModelInputs, assemble
from tiger.backbones.cache import BlockCache


@dataclass
class VerifierState:
    """Cache and next position of each request in flight."""

    cache: BlockCache
    next_positions: list[int]

    def select_rows(self, rows: list[int]) -> None:
        """Keeps the given requests."""
        self.cache.select_rows(rows)
        self.next_positions = [self.next_positions[row] for row in rows]


class Verifier:
    """The frozen model whose output is the product's output; it always sees every visual token.

    Args:
        backbone: The verifier's backbone.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def prefill(self, inputs: Sequence[ModelInputs], reserve: int) -> tuple[VerifierState, Tensor]:
        """Reads the prompts.

        Args:
            inputs: B requests.
            reserve: Tokens per row to keep room for behind the prompt.

        Returns:
            The state, and the logits [B, V] of each answer's first token.
        """
        backbone = self.backbone
        batch = assemble(inputs, backbone.encode(inputs), [backbone.embed(entry.ids) for entry in inputs])
        cache = backbone.new_cache(len(inputs), max(batch.lengths) + reserve)
        hidden = backbone.run_assembled(batch, cache)
        cache.commit(batch.lengths)
        last = torch.tensor(batch.lengths, device=hidden.device) - 1
        logits = backbone.logits(hidden[torch.arange(len(inputs), device=hidden.device), last])
        return VerifierState(cache, [entry.next_position for entry in inputs]), logits

    def run(
        self, state: VerifierState, tokens: Tensor, tree: Tensor | None = None, depths: Tensor | None = None
    ) -> Tensor:
        """Reads tokens [B, M] behind the committed ones; nothing is committed yet.

        Args:
            state: The requests in flight.
            tokens: Token ids, the root first.
            tree: Ancestor mask [M, M]; a chain by default.
            depths: Distance of each token from the root [M]; a chain by default.

        Returns:
            Logits [B, M, V].
        """
        backbone, count = self.backbone, tokens.shape[1]
        state.cache.require(count)
        depths = torch.arange(count, device=tokens.device) if depths is None else depths
        start = torch.tensor(state.next_positions, device=tokens.device)
        positions = (start[:, None] + depths).expand(backbone.num_axes, -1, -1)
        mask = state.cache.mask(count, tree)
        return backbone.logits(backbone.run(backbone.embed(tokens), positions, mask, state.cache))

    def commit(self, state: VerifierState, counts: list[int]) -> None:
        """Keeps the first tokens of the last pass, one count per row."""
        state.cache.commit(counts)
        state.next_positions = [p + n for p, n in zip(state.next_positions, counts, strict=True)]
