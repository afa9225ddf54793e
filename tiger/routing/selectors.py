"""How the K routed tokens of a round are chosen: one signature for every policy.

A selector returns the rows of the bank that are shown. The global token, row N, is chosen like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tiger.backbones.bank import VisualBank
from tiger.routing.pruning import important_and_diverse, rated

SelectorName = Literal["routed", "full", "random", "static", "sparsevlm", "vispruner"]


@dataclass(frozen=True)
class Evidence:
    """What a selector may judge by.

    Attributes:
        scores: Router scores [N].
        bank: The visual bank, the global token included.
        text: Embeddings [T, D] of the text behind the images, the root last; None if the policy does not read
            it, see `READS_TEXT`.
        generator: Source of randomness.
    """

    scores: Tensor
    bank: VisualBank
    text: Tensor | None = None
    generator: torch.Generator | None = None


Selector = Callable[[Evidence, int], Tensor]
READS_TEXT = ("sparsevlm",)
READS_IMPORTANCE = ("vispruner",)
ONCE = ("full", "static", "vispruner")  # neither text nor chance matters: one choice per request


def routed_rows(evidence: Evidence, count: int) -> Tensor:
    """The rows that the router scores highest."""
    return _highest(evidence.scores, count)


def full_rows(evidence: Evidence, count: int) -> Tensor:
    """Every row but the global token, whatever `count` is."""
    return torch.arange(len(evidence.bank) - 1, device=evidence.scores.device)


def random_rows(evidence: Evidence, count: int) -> Tensor:
    """Other rows every round."""
    scores = evidence.scores
    return _highest(torch.rand(scores.shape, generator=evidence.generator, device=scores.device), count)


def static_rows(evidence: Evidence, count: int) -> Tensor:
    """The rows farthest from the mean of the bank, a saliency that ignores the text."""
    tokens = evidence.bank.tokens
    return _highest((tokens - tokens.mean(0)).norm(dim=-1), count)


def sparsevlm_rows(evidence: Evidence, count: int) -> Tensor:
    """The rows that the raters among the words so far score highest, see `pruning.rated`."""
    assert evidence.text is not None
    return _highest(rated(evidence.bank.tokens, evidence.text), count)


def vispruner_rows(evidence: Evidence, count: int) -> Tensor:
    """Rows of great importance and rows that differ, see `pruning.important_and_diverse`."""
    assert evidence.bank.importance is not None
    return important_and_diverse(evidence.bank.importance, evidence.bank.tokens, count)


SELECTORS: dict[str, Selector] = {
    "routed": routed_rows,
    "full": full_rows,
    "random": random_rows,
    "static": static_rows,
    "sparsevlm": sparsevlm_rows,
    "vispruner": vispruner_rows,
}


def _highest(scores: Tensor, count: int) -> Tensor:
    return scores.topk(min(count, len(scores))).indices


def select(selector: SelectorName, evidence: Evidence, num_routed: int) -> Tensor:
    """Chooses the routed rows of one request.

    Args:
        selector: The policy.
        evidence: What it judges by.
        num_routed: K; a bank of K tokens or fewer is shown whole.

    Returns:
        Ascending row indices [min(K, N)]; all rows but the global one for `full`.

    Raises:
        ValueError: If K is below one or the policy is unknown.
    """
    if num_routed < 1:
        raise ValueError(
            f"num_routed is {num_routed}; route one visual token or more, or choose selector 'full'."
        )
    if selector not in SELECTORS:
        raise ValueError(f"Unknown selector {selector!r}; choose one of {', '.join(SELECTORS)}.")
    return SELECTORS[selector](evidence, num_routed).sort().values
