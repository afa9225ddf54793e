"""The verifier's side of decoding: one prefill, then passes over decided and proposed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Assembled, Backbone, ModelInputs, assemble
from tiger.backbones.cache import BlockCache
from tiger.backbones.features import check_layers, with_features
from tiger.decoding.records import NO_NODE
from tiger.drafting.base import Reading, TokenTree


@dataclass
class VerifierState:
    """Requests in flight.

    Attributes:
        cache: Keys and values of what has been read.
        next_positions: Position of the next token of each request.
        reading: What the last pass made of its tokens.
    """

    cache: BlockCache
    next_positions: list[int]
    reading: Reading

    def select_rows(self, rows: list[int]) -> None:
        """Keeps the given requests."""
        self.cache.select_rows(rows)
        self.next_positions = [self.next_positions[row] for row in rows]


class Verifier:
    """The frozen model whose output is the product's output; it always sees every visual token.

    Args:
        backbone: The verifier's backbone.
        feature_layers: Layers whose inputs the drafter reads; none for the final hidden states.

    Raises:
        ValueError: If there is no such layer.
    """

    def __init__(self, backbone: Backbone, feature_layers: Sequence[int] = ()) -> None:
        check_layers(backbone, feature_layers)
        self.backbone, self.feature_layers = backbone, tuple(feature_layers)

    def prefill(self, inputs: Sequence[ModelInputs], reserve: int) -> tuple[VerifierState, Tensor]:
        """Reads the prompts.

        Args:
            inputs: B requests.
            reserve: Tokens per row to keep room for behind the prompt.

        Returns:
            The state, and the logits [B, V] of each answer's first token.
        """
        backbone = self.backbone
        inputs, banks = self.look(inputs)
        batch = assemble(inputs, banks, [backbone.embed(entry.ids) for entry in inputs])
        cache = backbone.new_cache(len(inputs), max(batch.lengths) + reserve)
        hidden, features = with_features(
            backbone, self.feature_layers, lambda: backbone.run_assembled(batch, cache)
        )
        cache.commit(batch.lengths)
        last = torch.tensor(batch.lengths, device=hidden.device) - 1
        logits = backbone.logits(hidden[torch.arange(len(inputs), device=hidden.device), last])
        positions = [entry.next_position for entry in inputs]
        return VerifierState(cache, positions, self._prompt_reading(inputs, batch, hidden, features)), logits

    def look(self, inputs: Sequence[ModelInputs]) -> tuple[Sequence[ModelInputs], list[VisualBank]]:
        """Encodes the images of B requests; what the language model is going to read of each."""
        return inputs, self.backbone.encode(inputs)

    def _prompt_reading(
        self, inputs: Sequence[ModelInputs], batch: Assembled, hidden: Tensor, features: Tensor
    ) -> Reading:
        tokens = torch.nn.utils.rnn.pad_sequence([entry.ids for entry in inputs], batch_first=True)
        ends = torch.tensor(batch.lengths, device=hidden.device)
        valid = (torch.arange(hidden.shape[1], device=hidden.device) < ends[:, None]) & ~batch.visual
        reading = Reading(tokens.to(hidden.device), hidden, features, self.backbone.logits, [], valid=valid)
        reading.kept, reading.prompt = reading.places(), batch
        return reading

    def run(self, state: VerifierState, tokens: Tensor, tree: TokenTree | None = None) -> Tensor:
        """Reads tokens [B, M] behind the committed ones; nothing is committed yet.

        Args:
            state: The requests in flight.
            tokens: Token ids, the root first.
            tree: Who follows whom behind the root; a chain by default.

        Returns:
            Logits [B, M, V].
        """
        backbone, count = self.backbone, tokens.shape[1]
        state.cache.require(count)
        seen = None if tree is None else tree.ancestors()
        depths = torch.arange(count, device=tokens.device) if seen is None else seen.sum(-1) - 1
        start = torch.tensor(state.next_positions, device=tokens.device)
        positions = (start[:, None] + depths).expand(backbone.num_axes, -1, -1)
        mask = state.cache.mask(count, seen)
        hidden, features = with_features(
            backbone,
            self.feature_layers,
            lambda: backbone.run(backbone.embed(tokens), positions, mask, state.cache),
        )
        state.reading = Reading(tokens, hidden, features, backbone.logits, [], backbone.logits(hidden))
        if tree is not None and tree.parents is not None:
            state.reading.valid = torch.nn.functional.pad(tree.parents != NO_NODE, (1, 0), value=True)
        assert state.reading.logits is not None
        return state.reading.logits

    def keep(self, state: VerifierState, paths: list[list[int]]) -> None:
        """Keeps the root and a path of the last pass's tree, one path per row."""
        state.reading.kept = [[0, *(node + 1 for node in path)] for path in paths]
        state.cache.gather(state.reading.kept)
        self.commit(state, list(map(len, state.reading.kept)))

    def commit(self, state: VerifierState, counts: list[int]) -> None:
        """Keeps the first tokens of the last pass, one count per row."""
        state.cache.commit(counts)
        state.next_positions = [p + n for p, n in zip(state.next_positions, counts, strict=True)]
