"""Writes a drafted chain: picks each token and keeps what it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tiger.decoding.acceptance import Sampling, draw
from tiger.drafting.base import TokenTree


class Chain:
    """A chain per request, written token by token.

    Args:
        sampling: How tokens are picked.
        generators: Randomness of each request.
        temper: Makes of logits those that drafts are sampled by.
    """

    def __init__(
        self, sampling: Sampling, generators: Sequence[torch.Generator], temper: Callable[[Tensor], Tensor]
    ) -> None:
        self.sampling, self.generators, self.temper = sampling, generators, temper
        self.tokens: list[Tensor] = []
        self.probabilities: list[Tensor] = []

    def write(self, logits: Tensor) -> Tensor:
        """Picks the next tokens [B] by logits [B, V]."""
        if self.sampling.is_greedy:
            chosen = logits.argmax(-1)
        else:
            probability = self.sampling.probabilities(self.temper(logits))
            picks = [draw(row, g) for row, g in zip(probability, self.generators, strict=True)]
            chosen = torch.tensor(picks, device=logits.device)
            self.probabilities.append(probability)
        self.tokens.append(chosen)
        return chosen

    def tree(self) -> TokenTree:
        """What was written."""
        probabilities = torch.stack(self.probabilities, 1) if self.probabilities else None
        return TokenTree(torch.stack(self.tokens, 1), probabilities=probabilities)
