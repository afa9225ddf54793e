"""Which tokens of a text the loss looks at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tiger.training.ranks import any_rank


def supervised_tokens(
    starts: Sequence[int], lengths: Sequence[int], index: Tensor, judged: Tensor
) -> list[Tensor]:
    """Marks the tokens [T] of each text that some block is judged at.

    Args:
        starts: Where each answer's first token stands in its text.
        lengths: Tokens T of each text.
        index: Places in the answers of the blocks' tokens [B, A, S].
        judged: Which of them the loss looks at [B, A, S].
    """
    marks = []
    for start, length, places, kept in zip(starts, lengths, index, judged, strict=True):
        mark = torch.zeros(length, dtype=torch.bool, device=index.device)
        mark[start + places[kept]] = True
        marks.append(mark)
    return marks


def check_supervision(marks: Tensor) -> None:
    """Checks the tokens of a batch over all ranks; every rank must call it.

    Args:
        marks: Which tokens are supervised [T].

    Raises:
        ValueError: If none are, or all are.
    """
    if not any_rank(marks.any()):
        raise ValueError(
            "No token of the batch is supervised, so nothing would be learnt: answers need two tokens or "
            "more, and with a draft vocabulary the verifier's choices must be among its ids. Look at an "
            "example with `python -m tiger data preview` and the options of this run."
        )
    if not any_rank(~marks.all()):
        raise ValueError(
            "All tokens of the batch are supervised, the prompts' too, which the head never drafts. Look at "
            "an example with `python -m tiger data preview` and the options of this run."
        )
