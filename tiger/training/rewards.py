"""What a drafted block earns, token by token, and which token gets the credit (paper Eq. 11-15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RewardName = Literal["accepted_prefix", "expected_prefix", "binary", "token_agreement"]
Test = Literal["greedy", "sampling"]
Credit = Literal["block", "prefix"]


@dataclass(frozen=True)
class Rewards:
    """Rewards of blocks as sums over tokens.

    Attributes:
        terms: What each token adds to its block's reward [..., G, S]; their sum is the reward.
        alive: Weight in [0, 1] of token u still being able to change the reward [..., G, S].
    """

    terms: Tensor
    alive: Tensor

    @property
    def total(self) -> Tensor:
        """Reward of each block [..., G]."""
        return self.terms.sum(-1)


def acceptance(teacher: Tensor, student_log_probability: Tensor, blocks: Tensor, test: Test) -> Tensor:
    """Chance that each drafted token passes the verifier's test, given that those before it passed.

    Args:
        teacher: Verifier logits [..., S, V].
        student_log_probability: log q of the drafted tokens [..., S].
        blocks: Drafted tokens [..., S].
        test: `greedy`: 1 where the token is the verifier's argmax; `sampling`: min(1, p/q).

    Returns:
        Values in [0, 1], [..., S].
    """
    if test == "greedy":
        return (teacher.argmax(-1) == blocks).float()
    log_p = teacher.float().log_softmax(-1).gather(-1, blocks[..., None])[..., 0]
    return (log_p - student_log_probability.detach()).clamp_max(0.0).exp()


def rewards(name: RewardName, chance: Tensor, uniform: Tensor) -> Rewards:
    """Rewards of blocks.

    `accepted_prefix` (paper Eq. 13) counts the accepted tokens, `binary` is 1 if the first is accepted,
    `token_agreement` counts accepted tokens wherever they stand, and `expected_prefix` (ours) is the
    expectation of `accepted_prefix` over the test, sum_u prod_{m<=u} min(1, p/q), free of its noise.

    Args:
        name: Kind of reward.
        chance: Acceptance chances [..., G, S] from `acceptance`.
        uniform: Random numbers in [0, 1) of the same shape; a token passes where its number is below its
            chance. `expected_prefix` does not look at them.
    """
    passed = chance if name == "expected_prefix" else (uniform < chance).float()
    if name == "token_agreement":
        return Rewards(passed, torch.ones_like(passed))
    survival = passed.cumprod(-1)
    alive = torch.cat([torch.ones_like(survival[..., :1]), survival[..., :-1]], dim=-1)
    if name == "binary":
        first = torch.zeros_like(passed)
        first[..., 0] = 1.0
        return Rewards(passed * first, first)
    return Rewards(survival, alive)


def advantages(reward: Rewards, credit: Credit, epsilon: float = 1e-4) -> Tensor:
    """Weights of log q(token), normalised within each group (paper Eq. 14).

    `block` gives every token its block's normalised reward, as the paper does. `prefix` (ours) gives token u
    what the block earns from u on, minus the group's mean of that among blocks still alive at u. What was
    earned before u does not depend on token u, and a dead block earns nothing more, so the expected gradient
    is the same and its variance smaller.

    A group whose blocks earn the same teaches nothing under either credit, even where its blocks earn it with
    different tokens, as `token_agreement` allows.

    Args:
        reward: Rewards of G blocks per anchor.
        credit: Who gets the credit.
        epsilon: Added to the group's standard deviation; a group of no more spread has no weight.

    Returns:
        Weights [..., G, S].
    """
    total = reward.total
    spread = total.std(-1, unbiased=False, keepdim=True)
    deviation = spread + epsilon
    if credit == "block":
        weight = (total - total.mean(-1, keepdim=True)) / deviation
        return weight[..., None].expand_as(reward.terms)
    ahead = reward.terms.flip(-1).cumsum(-1).flip(-1)
    baseline = ahead.sum(-2, keepdim=True) / reward.alive.sum(-2, keepdim=True).clamp_min(1e-6)
    return (ahead - reward.alive * baseline) / deviation[..., None] * (spread > epsilon)[..., None]
