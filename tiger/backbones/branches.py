"""Many short continuations of each text, read in one pass over the text's cached keys and values."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers import DynamicCache

from tiger.backbones.base import Backbone


class Branches:
    """Branches of tokens behind the roots of cached texts; none sees another.

    A row of the batch holds A anchors with G branches each. Branches may be read piece by piece, and each as
    far as it is wanted: tokens that are read together are packed, so that a short branch costs less.

    Args:
        backbone: The model that reads.
        cache: Keys and values [B, H, C, head_dim] of the texts; it is left as it is.
        roots: Hidden states of the roots [B, A, D].
        positions: Positions of the roots [B, A].
        bias: Additive mask [B, A, C] of what the branches of each anchor see of the cache.
        group: Branches G per anchor.
    """

    def __init__(
        self,
        backbone: Backbone,
        cache: DynamicCache,
        roots: Tensor,
        positions: Tensor,
        bias: Tensor,
        group: int,
    ) -> None:
        self.backbone, self.bias, self.group = backbone, bias, group
        self.cache = fork(cache)
        self.roots = roots.repeat_interleave(group, 1)
        self.positions = positions.repeat_interleave(group, 1)
        self.branch = positions.new_zeros(len(positions), 0)
        self.step, self.valid = self.branch, self.branch.bool()

    def states(self, blocks: Tensor, start: int, wanted: Tensor) -> Tensor:
        """Hidden states that give the distribution of some tokens of each block.

        Tokens before `start` must have been read by earlier calls, except the last of them.

        Args:
            blocks: Tokens [B, A * G, S] of each branch.
            start: First token of the window.
            wanted: Which tokens of the window [B, A * G, C] are asked for; in each branch a beginning of it.

        Returns:
            Hidden states [B, A * G, C, D]; what was not wanted is arbitrary.
        """
        end = start + wanted.shape[2]
        if start:
            return self._read(blocks[:, :, start - 1 : end - 1], start, wanted)
        if end == 1:
            return self.roots[:, :, None]
        rest = self._read(blocks[:, :, : end - 1], 1, wanted[:, :, 1:])
        return torch.cat([self.roots[:, :, None], rest], dim=2)

    def _read(self, tokens: Tensor, first: int, wanted: Tensor) -> Tensor:
        """Reads tokens [B, A * G, C] at distance `first` and on from their roots."""
        rows, branches, count = tokens.shape
        flat = wanted.flatten(1)
        width = max(1, int(flat.sum(1).max()))  # the number of passes must not depend on the data
        index = (~flat).int().argsort(dim=1, stable=True)[:, :width]
        hidden = self.roots.new_zeros(rows, branches * count, self.roots.shape[-1])
        branch, step = index // count, index % count + first
        positions = self.positions.gather(1, branch) + step
        mask = self._mask(branch, step, flat.gather(1, index))
        packed = self.backbone.run(
            self.backbone.embed(tokens.flatten(1).gather(1, index)),
            positions.expand(self.backbone.num_axes, -1, -1),
            mask[:, None],
            self.cache,
        )
        target = index[..., None].expand(-1, -1, hidden.shape[-1])
        hidden = hidden.to(packed.dtype).scatter(1, target, packed)
        return hidden.view(rows, branches, count, -1)

    def _mask(self, branch: Tensor, step: Tensor, valid: Tensor) -> Tensor:
        """Additive mask [B, Q, C + columns so far] of new columns; adds them to those so far."""
        self.branch, self.step = torch.cat([self.branch, branch], 1), torch.cat([self.step, step], 1)
        self.valid = torch.cat([self.valid, valid], 1)
        seen = (branch[:, :, None] == self.branch[:, None]) & (step[:, :, None] >= self.step[:, None])
        seen &= self.valid[:, None]
        count = branch.shape[1]
        # Padding sees itself, since attention to nothing is not a number.
        seen[:, :, -count:] |= torch.eye(count, dtype=torch.bool, device=seen.device)
        anchor = (branch // self.group)[..., None].expand(-1, -1, self.bias.shape[2])
        return torch.cat([self.bias.gather(1, anchor), additive(seen, self.bias.dtype)], dim=2)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive form of a bool mask (True: attend)."""
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return bias.masked_fill_(~visible, torch.finfo(dtype).min)


def fork(cache: DynamicCache) -> DynamicCache:
    """A cache that starts from another one's tensors and leaves it as it is when it grows."""
    forked = copy.copy(cache)
    forked.layers = [copy.copy(layer) for layer in cache.layers]
    return forked
