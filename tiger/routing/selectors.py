"""How the K routed tokens of a round are chosen: one signature for every policy.

A selector returns scores over the bank; the K highest win, in original order. The global token is row N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

SelectorName = Literal["routed", "full", "random", "static"]
Selector = Callable[[Tensor, Tensor, torch.Generator | None], Tensor]


def random_scores(scores: Tensor, bank: Tensor, generator: torch.Generator | None) -> Tensor:
    """A fresh random order [N] every round."""
    return torch.rand(scores.shape, generator=generator, device=scores.device)


def static_scores(scores: Tensor, bank: Tensor, generator: torch.Generator | None) -> Tensor:
    """Saliency [N] that ignores the text: how far a token lies from the mean of the bank [N, D]."""
    return (bank - bank.mean(0)).norm(dim=-1)


def routed_scores(scores: Tensor, bank: Tensor, generator: torch.Generator | None) -> Tensor:
    """The router's own scores [N]."""
    return scores


SELECTORS: dict[str, Selector] = {"routed": routed_scores, "random": random_scores, "static": static_scores}


def select(
    selector: SelectorName,
    scores: Tensor,
    bank: Tensor,
    num_routed: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Chooses the routed rows of one request.

    Args:
        selector: The policy.
        scores: Router scores [N].
        bank: Bank tokens [N, D], the global token included.
        num_routed: K; a bank of K tokens or fewer is shown whole.
        generator: Source of randomness of the `random` policy.

    Returns:
        Ascending row indices [min(K, N)]; all rows but the global one for `full`.

    Raises:
        ValueError: If K is below one or the policy is unknown.
    """
    if num_routed < 1:
        raise ValueError(
            f"num_routed is {num_routed}; route one visual token or more, or choose selector 'full'."
        )
    if selector == "full":
        return torch.arange(len(bank) - 1, device=bank.device)
    if selector not in SELECTORS:
        raise ValueError(f"Unknown selector {selector!r}; choose one of full, {', '.join(SELECTORS)}.")
    values = SELECTORS[selector](scores, bank, generator)
    return values.topk(min(num_routed, len(values))).indices.sort().values
