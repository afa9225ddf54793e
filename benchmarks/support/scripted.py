"""A verifier and a drafter that do all their work and then follow a script: acceptance is chosen freely."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiger.backbones.qwen3_vl import Qwen3VLBackbone
from tiger.decoding.records import PhaseTimer
from tiger.drafting.base import TokenTree
from tiger.drafting.routed import RoutedDrafter


class ScriptedVerifier(Qwen3VLBackbone):
    """A verifier whose greedy choice after token t is always `successor(t)`, after its real computation."""

    read: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        """Embeds and remembers the tokens."""
        self.read = ids
        return super().embed(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Real logits with the successor on top; those of the prompt [B, V] stay as they are."""
        logits = super().logits(hidden)
        if logits.ndim == 3:
            logits.scatter_(2, successor(self.read, self.vocab_size)[..., None], 1e4)
        return logits


class ScriptedDrafter:
    """Drafts for real, then proposes `accepted` right tokens and wrong ones behind them.

    Args:
        inner: The drafter that does the work.
        accepted: Right tokens per block.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, inner: RoutedDrafter, accepted: int) -> None:
        self.inner, self.backbone, self.accepted = inner, inner.backbone, accepted
        self.num_nodes, self.begin, self.observe = inner.num_nodes, inner.begin, inner.observe
        self.select_rows = inner.select_rows

    def commit(self, state: Any, decided: list[list[int]]) -> None:
        """Hands the tokens on; the last one of a row is the root."""
        self.roots = [tokens[-1] for tokens in decided]
        self.inner.commit(state, decided)

    def propose(self, state: Any, block_size: int, timer: PhaseTimer) -> TokenTree:
        """The script's next tokens in place of the drafted ones."""
        tree = self.inner.propose(state, block_size, timer)
        vocab, tokens = self.backbone.vocab_size, []
        last = torch.tensor(self.roots, device=tree.tokens.device)
        for index in range(block_size):
            last = successor(last, vocab)
            tokens.append(last if index < self.accepted else (last + 1) % vocab)
        return TokenTree(torch.stack(tokens, 1), routes=tree.routes, scores=tree.scores)


def successor(tokens: Tensor, vocab: int) -> Tensor:
    """The token that the script puts after each token."""
    return (tokens * 3 + 1) % vocab
