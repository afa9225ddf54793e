"""Drafts blocks and has the verifier judge them, stopping early where nothing more can be earned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiger.backbones.branches import Branches
from tiger.drafting.blocks import Sampler
from tiger.training.losses import chunked
from tiger.training.ranks import any_rank
from tiger.training.rewards import Test, acceptance


@dataclass(frozen=True)
class Rollouts:
    """Drafted and judged blocks.

    Attributes:
        blocks: Tokens [B, A, G, S], 0 where nothing counts.
        counts: Which tokens count [B, A, G, S], a beginning of each block: those up to the first end token,
            and in early-stopped rollouts no further than the first that failed.
        chance: Chance of each token to pass the verifier's test, 0 where nothing counts.
        hidden: The verifier's hidden states [B, A, G, S, D] that judge the tokens.
    """

    blocks: Tensor
    counts: Tensor
    chance: Tensor
    hidden: Tensor


@torch.no_grad()
def roll_out(
    sampler: Sampler, judge: Branches, uniform: Tensor, test: Test, chunk: int | None = None
) -> Rollouts:
    """Drafts blocks of all branches, verifies them, and stops those that fail.

    Args:
        sampler: Draws the tokens.
        judge: The same branches behind the verifier's prefixes.
        uniform: Random numbers in [0, 1) that decide the test of each token [B, A, G, S].
        test: The test.
        chunk: Tokens that are drafted before the verifier judges them; a block goes on only while all of it
            passed. None drafts and judges every block to its end, whatever its test says.
    """
    shape, uniform = uniform.shape, uniform.flatten(1, 2)
    size = chunk or shape[-1]
    alive = torch.ones_like(uniform[..., 0], dtype=torch.bool)
    counts, chance = torch.zeros_like(uniform, dtype=torch.bool), torch.zeros_like(uniform)
    states, backbone = [], judge.backbone
    ends = torch.tensor(backbone.eos_ids, device=uniform.device)

    def judged(hidden: Tensor, log_q: Tensor, tokens: Tensor) -> Tensor:
        return acceptance(backbone.logits(hidden), log_q, tokens, test)

    for start in range(0, shape[-1], size):
        window = slice(start, min(start + size, shape[-1]))
        drafted = counts[..., window]
        for step in range(window.start, window.stop):
            if not alive.any():
                break
            counts[..., step] = alive
            sampler.draw(step, alive)
            alive = alive & ~torch.isin(sampler.blocks[..., step], ends)
        states.append(judge.states(sampler.blocks, start, drafted))
        given = states[-1], sampler.log_q[..., window], sampler.blocks[..., window]
        found = chunked(judged, *(value[drafted] for value in given), vocab_size=backbone.vocab_size)
        chance[..., window][drafted] = found
        if chunk:
            failed = drafted & (uniform[..., window] >= chance[..., window])
            alive = alive & ~failed.any(-1)
            drafted &= failed.cumsum(-1) - failed.int() == 0
            # Sharded layers need all ranks in every pass, so all ranks go on while one of them has to.
            if not any_rank(alive.any()):
                break
    hidden = torch.cat(states, dim=2)
    hidden = F.pad(hidden, (0, 0, 0, shape[-1] - hidden.shape[2]))
    parts = sampler.blocks * counts, counts, chance * counts, hidden
    return Rollouts(*(part.unflatten(1, shape[1:3]) for part in parts))
