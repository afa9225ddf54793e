"""What a recursive head makes of the answer's own tokens behind many roots, for training."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tiger.drafting.heads.base import HeadText
from tiger.drafting.heads.dynamic_tree import Step


def pick(values: Tensor, places: Tensor) -> Tensor:
    """Entries [B, A, D] of values [B, T, D] at places [B, A]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


def causal(count: int, rows: int, device: torch.device) -> Tensor:
    """Mask [B, 1, T, T] of tokens that see what stands before them, and themselves."""
    return torch.ones(count, count, dtype=torch.bool, device=device).tril().expand(rows, 1, -1, -1)


def unroll_chains(
    step: Step, cache: Cache, text: HeadText, roots: Tensor, hidden: Tensor, columns: Tensor, depth: int
) -> Tensor:
    """Continues every root with the tokens of the text and the head's own hidden states, as drafting would.

    This is training-time test (EAGLE-3, arXiv 2503.01840, section 3.2): a step sees the text up to its root,
    made of the verifier's features, and behind the root only its own chain.

    Args:
        step: Reads tokens.
        cache: Keys and values of the text.
        text: The text.
        roots: Places j whose token j + 1 is a root [B, A]; the token at place j + s must exist for entry s to
            mean something.
        hidden: Hidden states of the text at the roots [B, A, D].
        columns: Where these stand in the cache [B, A].
        depth: Tokens S behind each root.

    Returns:
        Hidden states [B, A, S, D].
    """
    states, last = [hidden], text.tokens.shape[1] - 1
    seen = torch.arange(cache.get_seq_length(), device=roots.device) <= columns[..., None]
    own = torch.eye(roots.shape[1], dtype=torch.bool, device=roots.device).expand(len(roots), -1, -1)
    for distance in range(1, depth):
        seen = torch.cat([seen, own], dim=2)
        embeddings = pick(text.embeddings, (roots + distance).clamp_max(last))
        states.append(step(embeddings, states[-1], roots + distance, seen[:, None], cache))
    return torch.stack(states, dim=2)
