"""What the verifier teaches a draft head: its features of a text, and what it would say along the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.features import with_features
from tiger.drafting.heads.base import HeadRow
from tiger.training.teacher import assembled


@dataclass
class HeadLesson:
    """One prompt and answer as the verifier reads them.

    Attributes:
        row: The text as the head reads it, place j for token j and what follows it [T, ...]; T is one less
            than the tokens.
        hidden: Final hidden states [R, D] at the answer's tokens; entry r judges token r + 1.
        attention: Attention [R, N] of the answer's tokens to the visual ones, raised to a power and averaged
            over heads and layers; None where nothing is guided.
    """

    row: HeadRow
    hidden: Tensor
    attention: Tensor | None = None

    @property
    def start(self) -> int:
        """Place whose next token is the answer's first."""
        return len(self.row.tokens) - len(self.hidden)


def keep_lesson(lesson: HeadLesson) -> dict[str, Tensor]:
    """What a teacher cache keeps of a lesson; embeddings of text are looked up again."""
    row = lesson.row
    kept = {"features": row.features, "tokens": row.tokens.int(), "visual": row.visual}
    kept |= {"seen": row.embeddings[row.visual], "hidden": lesson.hidden}
    return kept if lesson.attention is None else kept | {"attention": lesson.attention}


@torch.no_grad()
def restore_lesson(kept: Mapping[str, Tensor], verifier: Backbone) -> HeadLesson:
    """The very lesson that `keep_lesson` kept."""
    tokens, visual = kept["tokens"].long(), kept["visual"]
    embeddings = verifier.embed(tokens).clone()
    embeddings[visual] = kept["seen"]
    row = HeadRow(kept["features"], tokens, embeddings, visual)
    return HeadLesson(row, kept["hidden"], kept.get("attention"))


@torch.no_grad()
def read_head_lessons(
    verifier: Backbone,
    layers: Sequence[int],
    prompts: Sequence[Prompt],
    answers: Sequence[Tensor],
    guidance_layers: int = 0,
    guidance_power: float = 2.0,
) -> list[HeadLesson]:
    """Reads whole answers in one pass.

    Args:
        verifier: The verifier.
        layers: Layers whose inputs the head reads; none for the final hidden states.
        prompts: The prompts.
        answers: Token ids [R] of each answer.
        guidance_layers: Last layers whose attention guides a router; 0 where nothing is guided.
        guidance_power: Exponent of each head's attention before heads and layers are averaged.
    """
    inputs, _, batch = assembled(verifier, prompts, answers)
    attention: Tensor | None = None

    def run() -> Tensor:
        nonlocal attention
        if not guidance_layers:
            return verifier.run_assembled(batch)
        hidden, attention = verifier.run_with_attention(batch, guidance_layers, guidance_power)
        return hidden

    hidden, features = with_features(verifier, layers, run)
    lessons = []
    for index, (entry, answer) in enumerate(zip(inputs, answers, strict=True)):
        end = batch.lengths[index]
        behind = slice(1, end)
        # Copies, since a lesson that is remembered would keep the whole batch alive.
        row = HeadRow(
            features[index, : end - 1].clone(),
            torch.cat([entry.ids.to(answer.device), answer])[1:],
            batch.embeddings[index, behind].clone(),
            batch.visual[index, behind].clone(),
        )
        span = slice(end - len(answer), end)
        seen = None if attention is None else attention[index, span][:, batch.visual[index]]
        lessons.append(HeadLesson(row, hidden[index, span].clone(), seen))
    return lessons
