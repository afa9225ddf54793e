"""Stage 1: the drafter imitates the verifier on the verifier's own answers (paper Sec. 3.3)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_modules.collate import Batch
from tiger.drafting.blocks import Texts, read_blocks, route
from tiger.training.base import DraftTask
from tiger.training.losses import DIVERGENCES, LossName, chunked, guidance
from tiger.training.teacher import Lesson


class KDWarmStart(DraftTask):
    """Knowledge distillation of blocks from the verifier with full vision.

    Args:
        loss: Divergence between verifier and drafter at each block position.
        ce_weight: Weight of an added cross-entropy on the answer's own tokens.
        temperature: Divides both models' logits.
        kwargs: Options of `DraftTask`.
    """

    def __init__(
        self, loss: LossName = "kl", ce_weight: float = 0.0, temperature: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Scores the blocks behind all anchors in one pass and imitates the verifier there."""
        texts, lessons = self.texts(batch.examples), self.lessons(batch.examples)
        anchors = self.anchors(batch.examples, self.generator(batch_idx))
        routes = route(self.drafter, texts, anchors)
        blocks, valid = answer_blocks(
            texts, [len(lesson.hidden) for lesson in lessons], anchors, self.block_size
        )
        hidden = read_blocks(self.drafter, texts, routes, blocks[:, :, None], valid[:, :, None])[:, :, 0]
        teacher = teacher_hidden(lessons, anchors, self.block_size)
        divergence, ce = chunked(
            self._terms,
            hidden[valid],
            teacher[valid],
            blocks[valid],
            vocab_size=self.verifier.vocab_size,
        ).mean(0)
        size = len(batch.examples)
        self.log("loss/kd", divergence, batch_size=size)
        loss = divergence
        if self.options.ce_weight:
            self.log("loss/ce", ce, batch_size=size)
            loss = loss + self.options.ce_weight * ce
        if self.options.guidance_weight and self.drafter.selector == "routed" and texts.bank.shape[1]:
            attention = self.block_attention(lessons, texts, anchors)
            guide = guidance(routes.scores, attention).mean()
            self.log("loss/guidance", guide, batch_size=size)
            loss = loss + self.options.guidance_weight * guide
        self.log("loss/total", loss, batch_size=size, prog_bar=True)
        return loss

    def _terms(self, student: Tensor, teacher: Tensor, tokens: Tensor) -> Tensor:
        """Divergence and cross-entropy [P, 2] from hidden states [P, D] and the answer's tokens [P]."""
        temperature = self.options.temperature
        logits = self.drafter.backbone.logits(student)
        target = self.verifier.logits(teacher)
        divergence = DIVERGENCES[self.options.loss](target / temperature, logits / temperature)
        if not self.options.ce_weight:
            return torch.stack([divergence, torch.zeros_like(divergence)], -1)
        return torch.stack([divergence, F.cross_entropy(logits.float(), tokens, reduction="none")], -1)


def answer_blocks(texts: Texts, sizes: list[int], anchors: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The answer's own tokens behind each anchor.

    Args:
        texts: The texts.
        sizes: Answer lengths R of the rows.
        anchors: Roots [B, A].
        block_size: Tokens per block.

    Returns:
        Tokens [B, A, S] and which of them exist.
    """
    index = anchors[..., None] + 1 + torch.arange(block_size, device=anchors.device)
    valid = index < torch.tensor(sizes, device=anchors.device)[:, None, None]
    padded = texts.answers[:, None].expand(-1, anchors.shape[1], -1)
    return padded.gather(2, index.clamp_max(padded.shape[2] - 1)), valid


def teacher_hidden(lessons: list[Lesson], anchors: Tensor, block_size: int) -> Tensor:
    """Verifier hidden states [B, A, S, D] that judge the tokens behind each anchor."""
    hidden = torch.nn.utils.rnn.pad_sequence([lesson.hidden for lesson in lessons], batch_first=True)
    index = anchors[..., None] + torch.arange(block_size, device=anchors.device)
    index = index.clamp_max(hidden.shape[1] - 1)
    rows = torch.arange(len(lessons), device=anchors.device)[:, None, None]
    return hidden[rows, index]
