"""The frozen verifier as a teacher: what it would say along an answer, and where it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from tiger.backbones.base import Backbone, Prompt, assemble
from tiger.backbones.grids import Grid


@dataclass
class Lesson:
    """One answer as the verifier reads it.

    Attributes:
        hidden: Hidden states [R, D] at the answer's tokens; entry r predicts token r + 1.
        attention: Attention [R, N] of each answer token to the visual tokens, raised to a power and averaged
            over heads and layers.
        grids: Grids that N runs over.
    """

    hidden: Tensor
    attention: Tensor
    grids: tuple[Grid, ...]


@dataclass
class Prefixes:
    """Prompts and answers in the verifier's cache, for scoring blocks.

    Attributes:
        lessons: What the same pass taught.
        cache: Keys and values of prompts and answers; None where no block is to be scored.
        starts: Column of the first answer token [B].
        next_positions: Its position [B].
        hidden: Hidden states [B, T, D].
    """

    lessons: list[Lesson]
    cache: DynamicCache | None
    starts: Tensor
    next_positions: Tensor
    hidden: Tensor


class Teacher:
    """Runs the verifier without gradients.

    Args:
        backbone: The verifier.
        guidance_layers: Last layers whose attention guides the router.
        guidance_power: Exponent of each head's attention before heads and layers are averaged.
    """

    def __init__(self, backbone: Backbone, guidance_layers: int = 4, guidance_power: float = 2.0) -> None:
        self.backbone = backbone
        self.guidance_layers, self.guidance_power = guidance_layers, guidance_power

    def read(self, prompts: Sequence[Prompt], answers: Sequence[Tensor]) -> list[Lesson]:
        """Reads whole answers, with attention."""
        return self._read(prompts, answers, None).lessons

    def prefixes(self, prompts: Sequence[Prompt], answers: Sequence[Tensor]) -> Prefixes:
        """Reads whole answers into a cache that `score_blocks` continues."""
        return self._read(prompts, answers, DynamicCache(config=self.backbone.model.config))

    @torch.no_grad()
    def _read(
        self, prompts: Sequence[Prompt], answers: Sequence[Tensor], cache: DynamicCache | None
    ) -> Prefixes:
        inputs = [self.backbone.prepare(prompt) for prompt in prompts]
        banks = self.backbone.encode(inputs)
        embed = self.backbone.embed
        batch = assemble(inputs, banks, [embed(x.ids) for x in inputs], None, [embed(a) for a in answers])
        hidden, attention = self.backbone.run_with_attention(
            batch, self.guidance_layers, self.guidance_power, cache
        )
        lessons = []
        for row, (answer, bank) in enumerate(zip(answers, banks, strict=True)):
            end = batch.lengths[row]
            span = slice(end - len(answer), end)
            visual = batch.visual[row]
            # A copy, since a lesson that is remembered would keep the whole batch alive.
            lessons.append(Lesson(hidden[row, span].clone(), attention[row, span][:, visual], bank.grids))
        device = hidden.device
        sizes = torch.tensor([len(answer) for answer in answers], device=device)
        starts = torch.tensor(batch.lengths, device=device) - sizes
        positions = torch.tensor([entry.next_position for entry in inputs], device=device)
        return Prefixes(lessons, cache, starts, positions, hidden)

    @torch.no_grad()
    def score_blocks(self, prefixes: Prefixes, anchors: Tensor, blocks: Tensor) -> Tensor:
        """Hidden states of the verifier for drafted blocks, all in one pass over the shared prefixes.

        Args:
            prefixes: Prompts and answers.
            anchors: Index of each root in its answer [B, A].
            blocks: Drafted tokens [B, A, G, S].

        Returns:
            Hidden states [B, A, G, S, D]; entry u judges token u.
        """
        batch, num_anchors, group, count = blocks.shape
        columns = prefixes.starts[:, None] + anchors
        width = prefixes.hidden.shape[-1]
        roots = prefixes.hidden.gather(1, columns[..., None].expand(-1, -1, width))
        roots = roots[:, :, None, None].expand(-1, -1, group, -1, -1)
        if count == 1:
            return roots
        tokens = blocks[..., :-1]
        size = count - 1
        device = blocks.device
        branch = torch.arange(num_anchors * group, device=device).repeat_interleave(size)
        step = torch.arange(size, device=device).repeat(num_anchors * group)
        prefix = torch.arange(prefixes.hidden.shape[1], device=device) <= columns[..., None]
        own = (branch[:, None] == branch) & (step[:, None] >= step)
        mask = torch.cat([prefix[:, branch // group], own.expand(batch, -1, -1)], dim=2)
        start = prefixes.next_positions[:, None] + anchors + 1
        positions = (start[:, :, None, None] + torch.arange(size, device=device)).expand(-1, -1, group, -1)
        hidden = self.backbone.run(
            self.backbone.embed(tokens.flatten(1)),
            positions.flatten(1).expand(self.backbone.num_axes, -1, -1),
            mask[:, None],
            prefixes.cache,
        )
        return torch.cat([roots, hidden.view(batch, num_anchors, group, size, width)], dim=3)


def resample(attention: Tensor, source: Sequence[Grid], target: Sequence[Grid]) -> Tensor:
    """Carries attention over the verifier's visual grids to the drafter's.

    Newline tokens are left out on both sides: they show no part of the picture, and a router cannot tell them
    apart, because all have the same embedding; guidance towards them would fill the route with copies.

    Args:
        attention: [R, N_verifier].
        source: Grids of the verifier's bank.
        target: The same of the drafter's.

    Returns:
        Attention [R, N_drafter]; each grid keeps the total of its picture tokens.
    """
    if list(source) == list(target) and not any(grid.newlines for grid in source):
        return attention
    pieces, start = [], 0
    for grid, goal in zip(source, target, strict=True):
        part = attention[:, start : start + grid.size].view(-1, 1, grid.frames, grid.rows, grid.width)
        picture = part[..., : grid.columns]
        mapped = F.interpolate(picture, size=goal[:3], mode="trilinear", align_corners=False)
        total = picture.flatten(1).sum(1) / mapped.flatten(1).sum(1).clamp_min(1e-12)
        mapped = F.pad(mapped * total[:, None, None, None, None], (0, goal.width - goal.columns))
        pieces.append(mapped.flatten(1))
        start += grid.size
    return torch.cat(pieces, dim=1)
