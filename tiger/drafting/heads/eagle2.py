"""EAGLE-2: one decoder layer that continues the verifier's last hidden states."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import Cache

from tiger.backbones.base import Backbone
from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead, HeadState, HeadText
from tiger.drafting.heads.chains import causal, pick, unroll_chains
from tiger.drafting.heads.dynamic_tree import TreeSize, grow_tree
from tiger.drafting.heads.layers import Rope, bare_layer, layer_config, next_positions


class Eagle2(DraftHead):
    """Predicts the verifier's next feature from its last one and the token behind it (arXiv 2406.16858).

    Features are the hidden states behind the verifier's final norm, and the verifier's own vocabulary head
    scores the predicted ones. The layer has no norm before its attention, and there is none behind it. At
    visual places the head reads the verifier's visual embeddings.

    Args:
        verifier: The verifier.
        total_tokens: See `TreeSize`.
        depth: See `TreeSize`.
        top_k: See `TreeSize`.
    """

    method: ClassVar[str] = "eagle2"

    def __init__(self, verifier: Backbone, total_tokens: int = 60, depth: int = 5, top_k: int = 10) -> None:
        super().__init__(verifier)
        self.settings = {"total_tokens": total_tokens, "depth": depth, "top_k": top_k}
        self.tree = TreeSize(total_tokens, depth, top_k)
        config = layer_config(verifier)
        self.rope = Rope(config)
        self.fc = nn.Linear(2 * verifier.hidden_size, verifier.hidden_size)
        self.layers = nn.ModuleList([bare_layer(config)])

    def num_nodes(self, block_size: int) -> int:
        """The most tokens that a round proposes to a request."""
        return self.tree.num_nodes

    def scratch(self, block_size: int) -> int:
        """Places of the beams."""
        return self.tree.scratch(block_size)

    def step(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache
    ) -> Tensor:
        """Predicts the features [B, Q, D] of tokens, see `Step`."""
        inputs = self.fc(torch.cat([embeddings, features], dim=-1))
        hidden: Tensor = self.layers[0](
            inputs, mask, cache=cache, position_embeddings=self.rope(inputs, positions)
        )
        return hidden

    def unroll(self, text: HeadText, roots: Tensor, depth: int) -> Tensor:
        """Hidden states [B, A, S, D] behind roots, for training, see `DraftHead.unroll`.

        With a depth of 1 this is the paper's training, whose features are all the verifier's.
        """
        rows, count = text.tokens.shape
        cache, places = DynamicCache(), torch.arange(count, device=roots.device).expand(rows, -1)
        hidden = self.step(text.embeddings, text.features, places, causal(count, rows, roots.device), cache)
        return unroll_chains(self.step, cache, text, roots, pick(hidden, roots), roots, depth)

    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Reads the text and grows a tree behind it."""
        cache, count = state.cache, text.tokens.shape[1]
        assert cache is not None
        hidden = self.step(
            text.embeddings, text.features, next_positions(cache, count), cache.mask(count), cache
        )
        cache.commit(text.lengths)
        ends = next_positions(cache, 1)[:, 0]
        return grow_tree(self, self.step, cache, text.last(hidden), ends, self.tree, block_size)
