"""Where the verifier looks while it writes a block, over the drafter's bank: what guides the router."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tiger.drafting.blocks import Texts
from tiger.training.teacher import Lesson, resample
from tiger.training.teacher_cache import CachedLesson


def block_attention(
    lessons: Sequence[Lesson | CachedLesson], texts: Texts, anchors: Tensor, block_size: int
) -> Tensor:
    """Verifier attention to each bank token [B, A, N], averaged over the block behind each anchor.

    Args:
        lessons: The verifier's lessons, with attention.
        texts: The same prompts and answers as the drafter reads them.
        anchors: Index of each root in its answer [B, A].
        block_size: Tokens per block.
    """
    result = torch.zeros(*anchors.shape, texts.bank.shape[1], device=anchors.device)
    for row, (lesson, bank) in enumerate(zip(lessons, texts.banks, strict=True)):
        assert lesson.attention is not None, "the teacher was built without guidance"
        attention = resample(lesson.attention, lesson.grids, bank.grids).float()
        result[row, :, : attention.shape[1]] = over_blocks(attention, anchors[row], block_size)
    return result


def over_blocks(attention: Tensor, anchors: Tensor, block_size: int) -> Tensor:
    """Attention [R, N] of an answer's tokens, averaged over the block behind each anchor [A]: [A, N]."""
    total = torch.nn.functional.pad(attention.cumsum(0), (0, 0, 1, 0))
    end = (anchors + block_size).clamp_max(len(attention))
    return (total[end] - total[anchors]) / (end - anchors)[:, None]
