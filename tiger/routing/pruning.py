"""Choosing visual tokens as SparseVLM (arXiv 2410.04417) and VisPruner (arXiv 2412.01818) do.

Pure functions, shared by the drafter's selectors and by the pruners of the verifier.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IMPORTANT_SHARE = 0.5  # of the tokens that VisPruner keeps; the others are chosen for diversity
STEP = 8  # tokens that it drops before it compares the rest anew


def important_and_diverse(importance: Tensor, tokens: Tensor, count: int) -> Tensor:
    """VisPruner: half of the tokens by importance, half so that they differ from one another.

    The rest, in order of importance, is split in turn into two halves; of the first one, the tokens that
    resemble a token of the second most are dropped, a few at a time.

    Args:
        importance: Attention that the vision tower pays to each token [N].
        tokens: Visual tokens [N, D].
        count: Tokens K to keep.

    Returns:
        Ascending indices [min(K, N)].
    """
    if count >= len(tokens):
        return torch.arange(len(tokens), device=tokens.device)
    order = importance.argsort(descending=True, stable=True)
    num_important = int(count * IMPORTANT_SHARE)
    num_diverse = count - num_important
    unit = torch.nn.functional.normalize(tokens.detach().float(), dim=-1)
    rest = order[num_important:]
    while len(rest) > num_diverse:
        first, second = rest[::2], rest[1::2]
        likeness = (unit[first] @ unit[second].T).amax(1)
        ranking = likeness.argsort(descending=True, stable=True)
        num_dropped = min(STEP, len(rest) - num_diverse, len(first))
        rest = torch.cat([first[ranking[num_dropped:]], second])
    return torch.cat([order[:num_important], rest]).sort().values


def text_raters(visual: Tensor, text: Tensor) -> Tensor:
    """SparseVLM: which words ask for something visible, by the input embeddings alone.

    Each visual token spreads a vote over the words; words with more than the mean rate.

    Args:
        visual: Visual tokens [N, D].
        text: Embeddings [T, D] of the text behind them, of one word or more.

    Returns:
        Bool mask [T], with one rater or more.
    """
    votes = (visual.detach().float() @ text.detach().float().T).softmax(-1).mean(0)
    return (votes > votes.mean()) | (votes == votes.max())


def rated(visual: Tensor, text: Tensor) -> Tensor:
    """Scores [N] that raters give visual tokens where no attention of a language model is at hand.

    Each rater spreads a vote over the visual tokens, by the scaled product of their embeddings.
    """
    raters = text[text_raters(visual, text)].detach().float()
    logits = raters @ visual.detach().float().T * visual.shape[-1] ** -0.5
    return logits.softmax(-1).mean(0)


def kept_of(share: float, count: int) -> int:
    """Tokens that a share of `count` tokens comes to, one at least."""
    return max(1, round(share * count))


def check_shares(shares: Sequence[float]) -> None:
    """Checks shares of visual tokens to keep.

    Raises:
        ValueError: If one of them is not above 0 and at most 1.
    """
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"keep is {shares}; keep a share above 0 and at most 1, such as 0.33.")
