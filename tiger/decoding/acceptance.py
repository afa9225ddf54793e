"""Which drafted tokens the verifier keeps; all rules but `accept_typical` leave what it says unchanged.

Greedy: the longest prefix that equals the verifier's argmax. Sampled: a drafted token x is kept with
probability min(1, p(x)/q(x)), and the first rejected one is redrawn from norm(max(p - q, 0)), which leaves
the answer distributed as the verifier's own (Leviathan et al. 2023). A deterministic proposal has q = 1. In a
tree, siblings are tried in turn, each against what its rejected elder siblings left of p (Miao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiger.decoding.records import ROOT

LOWEST_TEMPERATURE = 1e-6  # logits divided by much less overflow


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from logits; the same for acceptance, replacement and continuation.

    Attributes:
        temperature: 0 for greedy decoding.
        top_k: Keep the k likeliest tokens, 0 for all.
        top_p: Keep the smallest set of tokens with this much probability, 1 for all.

    Raises:
        ValueError: If a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        fits = self.temperature == 0 or LOWEST_TEMPERATURE <= self.temperature < float("inf")
        if not fits or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                f"{self} is out of range: temperature 0 (greedy) or >= {LOWEST_TEMPERATURE:g}, top_k >= 0, "
                "0 < top_p <= 1."
            )

    @property
    def is_greedy(self) -> bool:
        """Whether decoding is deterministic."""
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities [..., V] in fp32 that tokens are drawn with.

        Raises:
            ValueError: At temperature 0, where nothing is drawn.
        """
        if self.is_greedy:
            raise ValueError("Greedy decoding draws no tokens; set temperature above 0.")
        scaled = logits.float() / self.temperature
        if 0 < self.top_k < scaled.shape[-1]:
            threshold = scaled.topk(self.top_k, dim=-1).values[..., -1:]
            scaled = scaled.masked_fill(scaled < threshold, float("-inf"))
        probabilities = scaled.softmax(-1)
        if self.top_p < 1:
            ordered, index = probabilities.sort(dim=-1, descending=True)
            outside = ordered.cumsum(-1) - ordered >= self.top_p
            probabilities = probabilities.scatter(-1, index, ordered.masked_fill(outside, 0.0))
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


def draw(probabilities: Tensor, generator: torch.Generator) -> int:
    """Draws one token from probabilities [V], by an exponential race."""
    noise = torch.empty(probabilities.shape, device=probabilities.device).exponential_(generator=generator)
    return int((probabilities / noise).argmax())


def accept_greedy(
    drafted: Tensor, logits: Tensor, lengths: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Longest matching prefixes.

    Args:
        drafted: Drafted tokens [B, S].
        logits: Verifier logits [B, S + 1, V] at the root and each drafted token.
        lengths: How many tokens of each row were drafted; None for all.

    Returns:
        Accepted lengths and bonus tokens of the rows.
    """
    best = logits.argmax(-1)
    accepted = (drafted == best[:, :-1]).long().cumprod(1).sum(1)
    if lengths is not None:
        accepted = accepted.minimum(torch.tensor(lengths, device=accepted.device))
    bonus = best.gather(1, accepted[:, None])[:, 0]
    return accepted.tolist(), bonus.tolist()


def accept_sampled(
    drafted: Tensor, target: Tensor, proposal: Tensor | None, generator: torch.Generator
) -> tuple[int, int]:
    """Rejection sampling of one row.

    Args:
        drafted: Drafted tokens [S].
        target: Verifier probabilities [S + 1, V].
        proposal: Draft probabilities [S, V]; None for a deterministic proposal.
        generator: The request's own generator; every call draws S uniforms and one token.

    Returns:
        Accepted length and bonus token.
    """
    count = len(drafted)
    chance = target[:count].gather(1, drafted[:, None])[:, 0]
    uniform = torch.rand(count, generator=generator, device=target.device)
    proposed = torch.ones_like(chance) if proposal is None else proposal.gather(1, drafted[:, None])[:, 0]
    accepted = int((uniform * proposed < chance).long().cumprod(0).sum())
    left = target[accepted]
    if accepted < count:
        if proposal is None:
            left = left.clone()
            left[drafted[accepted]] = 0.0
        else:
            left = (left - proposal[accepted]).clamp_min(0.0)
        # p = q up to rounding leaves no mass: the token could not have been rejected in exact arithmetic.
        left = left if left.sum() > 0 else target[accepted]
    return accepted, draw(left, generator)


def accept_tree_greedy(tokens: list[int], parents: list[int], best: list[int]) -> tuple[list[int], int]:
    """The longest path of one row's tree that equals the verifier's choices, the first one of several.

    Args:
        tokens: Drafted tokens [M].
        parents: Index of each token's parent [M], which stands before it, see `TokenTree`.
        best: The verifier's likeliest token behind the root and each drafted token [M + 1].

    Returns:
        The path and the bonus token.
    """
    depths = {ROOT: 0}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent in depths and token == best[parent + 1]:
            depths[node] = depths[parent] + 1
    last = max(depths, key=depths.__getitem__)
    return _path(parents, last), best[last + 1]


def _path(parents: list[int], node: int) -> list[int]:
    """The nodes from the root's child down to a node."""
    path = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def accept_typical(
    tokens: list[int], parents: list[int], logits: Tensor, sampling: Sampling
) -> tuple[list[int], int]:
    """Medusa's typical acceptance of one row's tree: lossy, answers no longer follow the verifier.

    A token x is kept if the verifier finds it likely enough, p(x) > min(0.09, 0.3 exp(-H(p))), where a high
    entropy H asks for less (Cai et al. 2024, arXiv 2401.10774). The longest kept path counts, the likeliest
    of several, and the token behind it is the verifier's likeliest.

    Args:
        tokens: Drafted tokens [M].
        parents: Index of each token's parent [M], which stands before it, see `TokenTree`.
        logits: Verifier logits [M + 1, V] behind the root and each drafted token.
        sampling: How p is made of logits.

    Returns:
        The path and the bonus token.
    """
    target = sampling.probabilities(logits)
    entropy = -torch.special.xlogy(target, target + 1e-5).sum(-1)
    least = (0.3 * (-entropy).exp()).clamp_max(0.09)
    above = torch.tensor(parents, dtype=torch.long, device=target.device).clamp_min(ROOT) + 1
    chance = target[above, torch.tensor(tokens, dtype=torch.long, device=target.device)]
    kept, gains = (chance > least[above]).tolist(), chance.log().tolist()
    ranks = {ROOT: (0, 0.0)}
    for node, parent in enumerate(parents):
        if parent in ranks and kept[node]:
            ranks[node] = ranks[parent][0] + 1, ranks[parent][1] + gains[node]
    last = max(ranks, key=ranks.__getitem__)
    return _path(parents, last), int(target[last + 1].argmax())


def accept_tree_sampled(
    tokens: list[int],
    parents: list[int],
    logits: Tensor,
    proposal: Tensor | None,
    sampling: Sampling,
    generator: torch.Generator,
) -> tuple[list[int], int]:
    """Rejection sampling of one row's tree, from the root down.

    Args:
        tokens: Drafted tokens [M].
        parents: Index of each token's parent [M], which stands before it, see `TokenTree`.
        logits: Verifier logits [M + 1, V] behind the root and each drafted token.
        proposal: What the tokens were drawn from [M, V], see `TokenTree`; None for a deterministic proposal.
        sampling: How tokens are drawn.
        generator: The request's own generator.

    Returns:
        The path and the bonus token.
    """
    path: list[int] = []
    node = ROOT
    while True:
        children = [child for child, parent in enumerate(parents) if parent == node]
        target = sampling.probabilities(logits[node + 1])
        if proposal is None or not children:
            child, token = _match(tokens, children, target, generator)
        else:
            child, token = _try(tokens, children, target, proposal[children[0]], generator)
        if child is None:
            return path, token
        path.append(child)
        node = child


def _match(
    tokens: list[int], children: list[int], target: Tensor, generator: torch.Generator
) -> tuple[int | None, int]:
    """The point-mass rule: the accepted child, or None, and the token at its place.

    Trying the children in turn, each with the chance that the residual gives it, comes to the same as drawing
    a token and looking whether it is among them.
    """
    token = draw(target, generator)
    return next((child for child in children if tokens[child] == token), None), token


def _try(
    tokens: list[int], children: list[int], target: Tensor, proposal: Tensor, generator: torch.Generator
) -> tuple[int | None, int]:
    """Tries children that were drawn without replacement; the accepted one, or None, and the token.

    After each rejection both distributions change: the target to what the child did not cover, the proposal
    to what the next child was drawn from, which is the rest of it without this child.
    """
    for child in children:
        token = tokens[child]
        uniform = torch.rand((), generator=generator, device=target.device)
        if bool(uniform * proposal[token] < target[token]):
            return child, token
        left = (target - proposal).clamp_min(0.0)
        # p = q up to rounding leaves no mass: the token could not have been rejected in exact arithmetic.
        target = left / left.sum() if left.sum() > 0 else target
        proposal = proposal.clone()
        proposal[token] = 0.0
        proposal = proposal / proposal.sum().clamp_min(torch.finfo(proposal.dtype).tiny)
    return None, draw(target, generator)
