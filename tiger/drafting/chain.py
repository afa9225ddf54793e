"""Writes a drafted chain: picks each token and keeps what it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tiger.decoding.acceptance import Sampling, draw
from tiger.drafting.base import TokenTree


def check_threshold(threshold: float) -> None:
    """Checks a confidence threshold.

    Raises:
        ValueError: If it is below 0, or 1 or more.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"confidence_threshold is {threshold}; take 0 to draft whole blocks, or below 1.")


def end_early(drafter: Any, threshold: float) -> None:
    """Has a drafter end its blocks early; methods that write no chain with a model stay as they are.

    Args:
        drafter: Any drafter.
        threshold: See `Chain`; 0 for whole blocks.

    Raises:
        ValueError: If it is below 0, or 1 or more.
    """
    check_threshold(threshold)
    if hasattr(drafter, "confidence_threshold"):
        drafter.confidence_threshold = threshold


class Chain:
    """A chain per request, written token by token.

    Args:
        sampling: How tokens are picked.
        generators: Randomness of each request.
        temper: Makes of logits those that drafts are sampled by.
        block_size: The most tokens of a chain.
        threshold: A chain ends behind the token at which the product of the likeliest tokens' chances falls
            below this. It does not look at what was drawn, or sampled answers would be biased.
    """

    def __init__(
        self,
        sampling: Sampling,
        generators: Sequence[torch.Generator],
        temper: Callable[[Tensor], Tensor],
        block_size: int,
        threshold: float,
    ) -> None:
        self.sampling, self.generators, self.temper = sampling, generators, temper
        self.block_size, self.threshold = block_size, threshold
        self.tokens: list[Tensor] = []
        self.probabilities: list[Tensor] = []
        self.lengths = [0] * len(generators)
        self.going = [True] * len(generators)
        self.confidence: Tensor | float = 1.0

    @property
    def has_ended(self) -> bool:
        """Whether no request's chain goes on."""
        return len(self.tokens) == self.block_size or not any(self.going)

    def write(self, logits: Tensor) -> Tensor:
        """Picks the next tokens [B] by logits [B, V]; those of chains that have ended mean nothing."""
        if self.sampling.is_greedy:
            chosen = logits.argmax(-1)
        else:
            probability = self.sampling.probabilities(self.temper(logits))
            rows = zip(probability, self.generators, self.going, strict=True)
            picks = [draw(row, generator) if going else 0 for row, generator, going in rows]
            chosen = torch.tensor(picks, device=logits.device)
            self.probabilities.append(probability)
        self.tokens.append(chosen)
        self.lengths = [length + going for length, going in zip(self.lengths, self.going, strict=True)]
        if self.threshold:
            exact = logits.float()  # or a threshold would mean something else in bf16
            self.confidence = self.confidence * (exact.amax(-1) - exact.logsumexp(-1)).exp()
            self.going = (self.confidence >= self.threshold).tolist()
        return chosen

    def tree(self) -> TokenTree:
        """What was written."""
        probabilities = torch.stack(self.probabilities, 1) if self.probabilities else None
        lengths = self.lengths if self.threshold else None
        return TokenTree(torch.stack(self.tokens, 1), probabilities=probabilities, lengths=lengths)
