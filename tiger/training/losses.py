"""Divergences between verifier and drafter, per position, in fp32.

All take logits p [..., V] of the verifier and q [..., V] of the drafter and return [...]. With
alpha = sum_v min(p, q), the chance that a sampled draft token is accepted, `tv` is 1 - alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LossName = Literal["kl", "reverse_kl", "js", "tv", "ce", "neg_log_acceptance"]
Divergence = Callable[[Tensor, Tensor], Tensor]


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(p || q): the drafter covers what the verifier may say."""
    p, q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def reverse_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(q || p): the drafter says only what the verifier may say."""
    return kl(student, teacher)


def js(teacher: Tensor, student: Tensor) -> Tensor:
    """Jensen-Shannon divergence, between 0 and log 2."""
    p, q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, device=p.device))
    return 0.5 * ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1))


def overlap(teacher: Tensor, student: Tensor) -> Tensor:
    """Acceptance probability of a sampled draft token, sum_v min(p, q) (Leviathan et al. 2023)."""
    return torch.minimum(teacher.float().softmax(-1), student.float().softmax(-1)).sum(-1)


def tv(teacher: Tensor, student: Tensor) -> Tensor:
    """Total variation distance, 1 - alpha."""
    return 1.0 - overlap(teacher, student)


def neg_log_acceptance(teacher: Tensor, student: Tensor) -> Tensor:
    """-log alpha: like `tv`, with a gradient that does not vanish while alpha is small."""
    return -overlap(teacher, student).clamp_min(1e-8).log()


def ce(teacher: Tensor, student: Tensor) -> Tensor:
    """Cross-entropy with the verifier's likeliest token."""
    q = student.float().log_softmax(-1)
    return -q.gather(-1, teacher.argmax(-1, keepdim=True))[..., 0]


def soft_ce(teacher: Tensor, student: Tensor) -> Tensor:
    """Cross-entropy with the verifier's distribution: `kl` plus what the verifier itself is unsure of."""
    return -(teacher.float().softmax(-1) * student.float().log_softmax(-1)).sum(-1)


def list_mle(teacher: Tensor, student: Tensor, count: int = 10) -> Tensor:
    """-log likelihood that the drafter ranks the verifier's likeliest tokens alike (Xia et al. 2008)."""
    ranked = teacher.topk(min(count, teacher.shape[-1])).indices
    scores = student.float().gather(-1, ranked)
    return (scores.flip(-1).logcumsumexp(-1).flip(-1) - scores).sum(-1)


DIVERGENCES: dict[str, Divergence] = {
    "kl": kl,
    "reverse_kl": reverse_kl,
    "js": js,
    "tv": tv,
    "ce": ce,
    "neg_log_acceptance": neg_log_acceptance,
}


def chunked(
    values: Callable[..., Tensor], *inputs: Tensor, vocab_size: int, max_elements: int = 2**26
) -> Tensor:
    """Values per position that need logits, which are only ever held for a few positions.

    Args:
        values: Maps the same positions of all inputs [C, ...] to values [C, ...]; it makes the logits itself.
        inputs: Tensors [P, ...], such as hidden states and token ids.
        vocab_size: Logits per position.
        max_elements: Most logits of one model that are held at a time. The logits of other positions are made
            again in the backward pass.

    Returns:
        Values of all positions [P, ...].
    """
    size = max(1, max_elements // vocab_size)
    if len(inputs[0]) <= size:
        return values(*inputs)
    pieces = zip(*(tensor.split(size) for tensor in inputs), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([values(*piece) for piece in pieces])
    return torch.cat([checkpoint(values, *piece, use_reentrant=False) for piece in pieces])


def guidance(scores: Tensor, attention: Tensor) -> Tensor:
    """Block attention guidance: cross-entropy of softmax(scores) with the verifier's visual attention.

    Args:
        scores: Router scores [..., N], -inf for missing tokens.
        attention: Non-negative weights [..., N], not normalised.

    Returns:
        One value per anchor [...].
    """
    target = attention / attention.sum(-1, keepdim=True).clamp_min(1e-9)
    log_probabilities = F.log_softmax(scores, dim=-1).masked_fill(scores == float("-inf"), 0.0)
    return -(target * log_probabilities).sum(-1)
