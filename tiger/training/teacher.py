"""The frozen verifier as a teacher: what it would say along an answer, and where it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Assembled, Backbone, ModelInputs, Prompt, assemble
from tiger.backbones.branches import Branches, additive
from tiger.backbones.grids import Grid


@dataclass
class Lesson:
    """One answer as the verifier reads it.

    Attributes:
        hidden: Hidden states [R, D] at the answer's tokens; entry r predicts token r + 1.
        attention: Attention [R, N] of each answer token to the visual tokens, raised to a power and averaged
            over heads and layers; None where nothing is guided.
        grids: Grids that N runs over.
        judgement: Names of the attributes that say what the verifier would have said.
    """

    hidden: Tensor
    attention: Tensor | None
    grids: tuple[Grid, ...]
    judgement = ("hidden",)


@dataclass
class Prefixes:
    """Prompts and answers in the verifier's cache, for judging blocks.

    Attributes:
        lessons: What the same pass taught.
        cache: Keys and values of prompts and answers; None where no block is to be judged.
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
        guidance_layers: Last layers whose attention guides the router; 0 where nothing is guided.
        guidance_power: Exponent of each head's attention before heads and layers are averaged.
    """

    def __init__(self, backbone: Backbone, guidance_layers: int = 4, guidance_power: float = 2.0) -> None:
        self.backbone = backbone
        self.guidance_layers, self.guidance_power = guidance_layers, guidance_power

    def read(self, prompts: Sequence[Prompt], answers: Sequence[Tensor]) -> list[Lesson]:
        """Reads whole answers."""
        return self._read(prompts, answers, None).lessons

    def prefixes(self, prompts: Sequence[Prompt], answers: Sequence[Tensor]) -> Prefixes:
        """Reads whole answers into a cache that `branches` continue."""
        return self._read(prompts, answers, DynamicCache(config=self.backbone.model.config))

    @torch.no_grad()
    def _read(
        self, prompts: Sequence[Prompt], answers: Sequence[Tensor], cache: DynamicCache | None
    ) -> Prefixes:
        inputs, banks, batch = assembled(self.backbone, prompts, answers)
        attention: Tensor | None = None
        if self.guidance_layers:
            hidden, attention = self.backbone.run_with_attention(
                batch, self.guidance_layers, self.guidance_power, cache
            )
        else:
            hidden = self.backbone.run_assembled(batch, cache)
        lessons = []
        for row, (answer, bank) in enumerate(zip(answers, banks, strict=True)):
            end = batch.lengths[row]
            span = slice(end - len(answer), end)
            seen = None if attention is None else attention[row, span][:, batch.visual[row]]
            # A copy, since a lesson that is remembered would keep the whole batch alive.
            lessons.append(Lesson(hidden[row, span].clone(), seen, bank.grids))
        device = hidden.device
        sizes = torch.tensor([len(answer) for answer in answers], device=device)
        starts = torch.tensor(batch.lengths, device=device) - sizes
        positions = torch.tensor([entry.next_position for entry in inputs], device=device)
        return Prefixes(lessons, cache, starts, positions, hidden)

    def branches(self, prefixes: Prefixes, anchors: Tensor, group: int) -> Branches:
        """Branches behind roots of the prefixes; their hidden states judge drafted blocks.

        Args:
            prefixes: Prompts and answers.
            anchors: Index of each root in its answer [B, A].
            group: Branches G per anchor.
        """
        columns = prefixes.starts[:, None] + anchors
        hidden = prefixes.hidden
        roots = hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[-1]))
        visible = torch.arange(hidden.shape[1], device=hidden.device) <= columns[..., None]
        assert prefixes.cache is not None
        positions = prefixes.next_positions[:, None] + anchors
        return Branches(
            self.backbone, prefixes.cache, roots, positions, additive(visible, hidden.dtype), group
        )


def assembled(
    backbone: Backbone, prompts: Sequence[Prompt], answers: Sequence[Tensor]
) -> tuple[list[ModelInputs], list[VisualBank], Assembled]:
    """Prompts and their answers, as a model reads them: inputs, visual banks and the padded batch."""
    inputs = [backbone.prepare(prompt) for prompt in prompts]
    banks, embed = backbone.encode(inputs), backbone.embed
    texts = [embed(entry.ids) for entry in inputs]
    return inputs, banks, assemble(inputs, banks, texts, None, [embed(answer) for answer in answers])


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
