"""Medusa: several heads on one hidden state, each guessing the token at its own distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tiger.backbones.base import Backbone
from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead, HeadState, HeadText
from tiger.drafting.heads.trees import StaticTree


class MedusaHead(DraftHead):
    """Heads without attention (Cai et al. 2024, arXiv 2401.10774).

    Head k turns the verifier's last hidden state h, the one that the root was read from, into
    h + SiLU(W_k h + b_k), which predicts the token k behind the root. The likeliest tokens of the heads fill
    a static tree: no head knows what its predecessors chose, so all nodes of a depth share one list of
    children. W and b start at zero, where every head says again what the verifier said of the root.

    Unlike the original, drafts are accepted exactly at any temperature, and the vocabulary heads are the
    verifier's, frozen, unless each head is given a trainable copy.

    Args:
        verifier: The verifier whose states it reads.
        num_heads: Heads; the longest branch.
        own_vocabulary: Whether each head has a vocabulary head [V, D] of its own, as in Medusa 1.0.
        tree: Name of a published tree, or its paths, see `StaticTree`; longer branches are cut.

    Raises:
        ValueError: If there is no head, or no such tree.
    """

    method = "medusa"
    num_layers = 0

    def __init__(
        self,
        verifier: Backbone,
        num_heads: int = 4,
        own_vocabulary: bool = False,
        tree: str | Sequence[Sequence[int]] = "mc_sim_7b_63",
    ) -> None:
        super().__init__(verifier)
        if num_heads < 1:
            raise ValueError(f"num_heads is {num_heads}; give Medusa one head or more.")
        self.settings = {"num_heads": num_heads, "own_vocabulary": own_vocabulary, "tree": tree}
        self.num_heads, self.tree = num_heads, StaticTree.of(tree, num_heads, verifier.vocab_size)
        self.blocks = nn.Linear(verifier.hidden_size, num_heads * verifier.hidden_size)
        nn.init.zeros_(self.blocks.weight)
        nn.init.zeros_(self.blocks.bias)
        self.vocabularies = (
            nn.Parameter(_vocabulary(verifier).repeat(num_heads, 1, 1)) if own_vocabulary else None
        )

    def score(self, hidden: Tensor, depths: Tensor | None = None) -> Tensor:
        """Logits [..., V] of each depth's head.

        Raises:
            ValueError: If heads have their own vocabularies, and a list of states comes without depths.
        """
        if self.vocabularies is None:
            return super().score(hidden)
        if depths is None:
            if hidden.ndim < 3:
                raise ValueError("Medusa's heads have vocabularies of their own; give score the depths.")
            depths = torch.arange(hidden.shape[-2], device=hidden.device).expand(hidden.shape[:-1])
        logits = hidden.new_empty(*hidden.shape[:-1], self.verifier.vocab_size)
        for depth, vocabulary in enumerate(self.vocabularies):
            at = depths == depth
            logits[at] = (hidden[at] @ vocabulary.T).to(logits.dtype)
        return logits

    def predict(self, features: Tensor, depth: int) -> Tensor:
        """Hidden states [..., S, D] of the first S = `depth` heads, of features [..., D]."""
        change = self.blocks(features).unflatten(-1, (self.num_heads, -1))[..., :depth, :]
        return features[..., None, :] + nn.functional.silu(change)

    def unroll(self, text: HeadText, roots: Tensor, depth: int) -> Tensor:
        """Hidden states of the heads at the features before the roots.

        Raises:
            ValueError: If there are fewer heads than `depth`.
        """
        if depth > self.num_heads:
            raise ValueError(
                f"Medusa has {self.num_heads} heads and cannot predict {depth} tokens. Lower the depth, or "
                "train with a larger num_heads."
            )
        rows = torch.arange(len(roots), device=roots.device)[:, None]
        return self.predict(text.features[rows, roots], depth)

    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Fills the tree from the feature before the root."""
        hidden = self.predict(text.last(text.features), block_size)
        return self.tree.cut(block_size).fill(self.score(hidden))

    def num_nodes(self, block_size: int) -> int:
        """The nodes of the tree that fit a block."""
        return len(self.tree.cut(block_size))


@torch.no_grad()
def _vocabulary(verifier: Backbone) -> Tensor:
    """Weights [V, D] of a verifier's vocabulary head, whatever stores them: its logits of unit vectors."""
    units = torch.eye(verifier.hidden_size, device=verifier.device, dtype=verifier.dtype)
    return verifier.logits(units).T.float().cpu()
