"""Trees that grow where the head is sure (EAGLE-2, arXiv 2406.16858, section 4).

A beam of the most probable branches is read level by level; of all tokens that it scored, those with the
largest cumulative probabilities are proposed. Nothing is drawn, so the proposal is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tiger.backbones.cache import BlockCache
from tiger.decoding.records import ROOT
from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead

Step = Callable[[Tensor, Tensor, Tensor, Tensor | None, Cache], Tensor]
"""Reads embeddings [B, Q, D] of tokens and the features [B, Q, D] before them, at positions [B, Q], under a
mask [B, 1, Q, past + Q], with a cache to read and extend; returns the hidden states [B, Q, D]."""


@dataclass(frozen=True)
class TreeSize:
    """How far a tree grows.

    Args:
        total_tokens: Most tokens of a verifier pass, the root included.
        depth: Times that the beam is read; a branch is one token longer, and `block_size` tokens at most.
        top_k: Branches in the beam, and children that are scored of each.

    Raises:
        ValueError: If nothing could grow.
    """

    total_tokens: int
    depth: int
    top_k: int

    def __post_init__(self) -> None:
        if self.total_tokens < 2 or self.depth < 0 or self.top_k < 1:
            raise ValueError(
                f"A tree with {self} is empty: total_tokens must be 2 or more (one is the root), depth 0 or "
                "more, and top_k 1 or more."
            )

    @property
    def num_nodes(self) -> int:
        """Most tokens that are proposed."""
        return self.total_tokens - 1

    def num_levels(self, block_size: int) -> int:
        """Tokens of the longest branch."""
        return min(self.depth + 1, block_size)

    def scratch(self, block_size: int) -> int:
        """Tokens of the beams, which are read behind the text."""
        return (self.num_levels(block_size) - 1) * self.top_k


@dataclass
class Beam:
    """The most probable branches of one length.

    Attributes:
        tokens: Their last tokens [B, K].
        scores: Their log-probabilities [B, K].
        hidden: Hidden states that these tokens were predicted from [B, K, D].
        places: Where the tokens stand among all that were scored [B, K].
        seen: Which tokens of the beams so far each sees, itself included [B, K, L].
    """

    tokens: Tensor
    scores: Tensor
    hidden: Tensor
    places: Tensor
    seen: Tensor


def grow_tree(
    head: DraftHead,
    step: Step,
    cache: BlockCache,
    hidden: Tensor,
    positions: Tensor,
    size: TreeSize,
    block_size: int,
) -> TokenTree:
    """Grows the trees of all rows together.

    Args:
        head: Scores hidden states and embeds tokens.
        step: Reads the beam.
        cache: Keys and values of the text; it is left with the text alone.
        hidden: Hidden states [B, D] that predict the first drafted tokens.
        positions: Positions of the first drafted tokens [B].
        size: How far the trees grow.
        block_size: Longest branch, tokens.

    Returns:
        The trees, level by level.
    """
    tokens, scores = _likeliest(head, hidden, size.top_k)
    width = tokens.shape[1]
    pool = [(tokens, scores, torch.full_like(tokens, ROOT))]
    places = torch.arange(width, device=tokens.device).expand_as(tokens)
    own = torch.eye(width, dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
    beam = Beam(tokens, scores, hidden[:, None].expand(-1, width, -1), places, own)
    for level in range(size.num_levels(block_size) - 1):
        mask = cache.mask(beam.seen.shape[2], beam.seen)
        above = [level * width] * len(tokens)
        cache.commit(above)
        at = (positions + level)[:, None].expand(-1, width)
        hidden = step(head.embed(beam.tokens), beam.hidden, at, mask, cache)
        cache.commit([-count for count in above])
        tokens, log_probs = _likeliest(head, hidden, width)
        scores = beam.scores[..., None] + log_probs
        offset = sum(part[0].shape[1] for part in pool)
        pool.append((tokens.flatten(1), scores.flatten(1), beam.places.repeat_interleave(width, 1)))
        beam = _next_beam(beam, hidden, tokens.flatten(1), scores.flatten(1), offset, own)
    scored, best, parents = (torch.cat(parts, dim=1) for parts in zip(*pool, strict=True))
    return _best(scored, best, parents, size.num_nodes)


def _likeliest(head: DraftHead, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest next tokens [..., K] of hidden states [..., D], and their log-probabilities."""
    log_probs = head.score(hidden).float().log_softmax(-1)
    found = log_probs.topk(min(count, log_probs.shape[-1]))
    tokens = found.indices if head.draft_ids is None else head.draft_ids[found.indices]
    return tokens, found.values


def _next_beam(beam: Beam, hidden: Tensor, tokens: Tensor, scores: Tensor, offset: int, own: Tensor) -> Beam:
    """The best K of the children [B, K * K] of a beam, which stand in the pool from `offset` on."""
    width = beam.tokens.shape[1]
    best = scores.topk(width)
    parents = (best.indices // width)[..., None]
    above = beam.seen.gather(1, parents.expand(-1, -1, beam.seen.shape[2]))
    return Beam(
        tokens.gather(1, best.indices),
        best.values,
        hidden.gather(1, parents.expand(-1, -1, hidden.shape[2])),
        offset + best.indices,
        torch.cat([above, own], dim=2),
    )


def _best(tokens: Tensor, scores: Tensor, parents: Tensor, count: int) -> TokenTree:
    """The tree of the `count` best tokens of a pool [B, P], in which parents stand before children.

    No token scores higher than its parent, and among equals the earlier ones are taken: so every token's
    parent is taken too.
    """
    ranked = scores.sort(dim=1, descending=True, stable=True).indices
    chosen = ranked[:, :count].sort(dim=1).values
    above = parents.gather(1, chosen)
    above = torch.where(above == ROOT, ROOT, torch.searchsorted(chosen, above.contiguous()))
    return TokenTree(tokens.gather(1, chosen), above)
