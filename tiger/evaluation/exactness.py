"""Whether a decoder's greedy answers are the verifier's own, up to ties of its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from data_modules.evaluation import TaskSet
from tiger.backbones.base import Backbone, Prompt
from tiger.decoding.records import Generation
from tiger.decoding.verifier import Verifier

# Passes of another length or batch round differently; this many steps of the number format are a tie.
TIE_STEPS = 4


def differing(answers: Sequence[Generation], reference: Sequence[Generation]) -> list[int]:
    """Indices of answers whose tokens differ."""
    pairs = enumerate(zip(answers, reference, strict=True))
    return [index for index, (answer, own) in pairs if answer.tokens != own.tokens]


def split_ties(
    indices: Sequence[int],
    answers: Sequence[Generation],
    reference: Sequence[Generation],
    tasks: TaskSet,
    verifier: Backbone,
) -> tuple[list[str], list[str]]:
    """Tells ties from errors among answers that differ from the verifier's own.

    Returns:
        Ids of answers that part from the reference where the verifier's logits of both tokens are equal
        within `TIE_STEPS` steps of its number format, and ids of all others.
    """
    ties: list[str] = []
    errors: list[str] = []
    for index in indices:
        tied = is_tie(tasks.prompt(index), answers[index].tokens, reference[index].tokens, verifier)
        (ties if tied else errors).append(answers[index].id)
    return ties, errors


@torch.inference_mode()
def is_tie(prompt: Prompt, left: Sequence[int], right: Sequence[int], verifier: Backbone) -> bool:
    """Whether the verifier rates two answers equally where they part.

    Args:
        prompt: Their prompt.
        left: Tokens of one answer.
        right: Tokens of the other one; if one is the beginning of the other, there is no tie.
        verifier: The verifier's backbone.
    """
    parting = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    if parting is None:
        return False
    reader = Verifier(verifier)
    state, logits = reader.prefill([verifier.prepare(prompt)], parting + 1)
    if parting:
        prefix = torch.tensor([list(left[:parting])], device=logits.device)
        logits = reader.run(state, prefix)[:, -1]
    scores = logits[0].float()
    gap = (scores[left[parting]] - scores[right[parting]]).abs()
    step = torch.finfo(verifier.dtype).eps * scores.abs().max()
    return bool(gap <= TIE_STEPS * step)
