"""Stage 1: the drafter imitates the verifier on the verifier's own answers (paper Sec. 3.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_modules.collate import Batch, Example
from tiger.drafting.blocks import read_blocks, route
from tiger.training.base import DraftTask
from tiger.training.block_attention import block_attention
from tiger.training.losses import DIVERGENCES, LossName, chunked, guidance
from tiger.training.ranks import global_mean
from tiger.training.teacher_cache import (
    CachedLesson,
    CacheSettings,
    TeacherCache,
    coarse,
    condense,
    open_cache,
    restore,
)


class KDWarmStart(DraftTask):
    """Knowledge distillation of blocks from the verifier with full vision.

    Args:
        loss: Divergence between verifier and drafter at each block position.
        ce_weight: Weight of an added cross-entropy on the answer's own tokens.
        temperature: Divides both models' logits.
        teacher_cache: Folder of lessons that `data cache-teacher` made, which replaces the verifier's passes.
            The divergence then takes all but the verifier's likeliest tokens as one. None reads live.
        kwargs: Options of `DraftTask`.
    """

    def __init__(
        self,
        loss: LossName = "kl",
        ce_weight: float = 0.0,
        temperature: float = 1.0,
        teacher_cache: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters()
        self.cache: TeacherCache | None = None

    def on_train_start(self) -> None:
        """Opens the teacher cache.

        Raises:
            FileNotFoundError: If there is none, or it is not whole.
            ValueError: If it was made by another verifier, on other data, or in another way.
        """
        super().on_train_start()
        if self.options.teacher_cache:
            loader = self.trainer.train_dataloader
            self.cache = open_cache(
                Path(self.options.teacher_cache),
                lambda made: self.cache_settings(loader, made.top_k, made.shard_size),
            )

    def cache_settings(self, loader: Any, top_k: int | None, shard_size: int) -> CacheSettings:
        """What a teacher cache for this task and the data of a loader depends on."""
        options = self.options
        return CacheSettings(
            self._verifier_mark,
            options.verifier_dtype,
            loader.identity,
            float(options.temperature),
            top_k,
            (options.guidance_layers, float(options.guidance_power)) if self.is_guided else None,
            len(loader.dataset),
            shard_size,
        )

    @torch.no_grad()
    def kept_lessons(self, examples: list[Example], settings: CacheSettings) -> list[dict[str, Tensor]]:
        """What a teacher cache keeps of the verifier's lessons on some examples."""
        answers = [example.response.to(self.device) for example in examples]
        read = self.teacher.read([example.prompt for example in examples], answers)
        return [condense(lesson, self.verifier.logits(lesson.hidden), settings) for lesson in read]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Scores the blocks behind all anchors in one pass and imitates the verifier there."""
        texts = self.texts(batch.examples)
        lessons = self._cached(batch) if self.options.teacher_cache else self.lessons(batch.examples)
        generators = self.generators(batch.examples, batch_idx)
        anchors = self.anchors(batch.examples, generators)
        routes = route(self.drafter, texts, anchors, generators)
        sizes = [len(example.response) for example in batch.examples]
        blocks, valid = answer_blocks(texts.answers, sizes, anchors, self.block_size)
        hidden = read_blocks(self.drafter, texts, routes, blocks[:, :, None], valid[:, :, None])[:, :, 0]
        teacher = [
            teacher_rows([getattr(lesson, name) for lesson in lessons], anchors, self.block_size)[valid]
            for name in lessons[0].judgement
        ]
        divergence, ce = global_mean(
            chunked(self._terms, hidden[valid], blocks[valid], *teacher, vocab_size=self.verifier.vocab_size)
        )
        size = len(batch.examples)
        self.log("loss/kd", divergence, batch_size=size, sync_dist=True)
        loss = divergence
        if self.options.ce_weight:
            self.log("loss/ce", ce, batch_size=size, sync_dist=True)
            loss = loss + self.options.ce_weight * ce
        if self.is_guided:
            attention = block_attention(lessons, texts, anchors, self.block_size)
            guide = guidance(routes.scores, attention).mean()
            self.log("loss/guidance", guide, batch_size=size, sync_dist=True)
            loss = loss + self.options.guidance_weight * guide
        self.log("loss/total", loss, batch_size=size, prog_bar=True, sync_dist=True)
        return loss

    def _cached(self, batch: Batch) -> list[CachedLesson]:
        assert self.cache is not None, "on_train_start has not run"
        return [restore(self.cache(example.prompt.id, self.device)) for example in batch.examples]

    def _terms(self, student: Tensor, tokens: Tensor, *teacher: Tensor) -> Tensor:
        """Divergence and cross-entropy [P, 2].

        Args:
            student: Hidden states of the drafter [P, D].
            tokens: The answer's tokens [P].
            teacher: Hidden states of the verifier [P, D], or what the cache kept: log-probabilities
                [P, k + 1] and token ids [P, k].
        """
        logits = self.drafter.backbone.logits(student)
        scaled = logits / self.options.temperature
        if len(teacher) == 2:
            pair = teacher[0], coarse(scaled, teacher[1])
        else:
            pair = self.verifier.logits(teacher[0]) / self.options.temperature, scaled
        divergence = DIVERGENCES[self.options.loss](*pair)
        if not self.options.ce_weight:
            return torch.stack([divergence, torch.zeros_like(divergence)], -1)
        return torch.stack([divergence, F.cross_entropy(logits.float(), tokens, reduction="none")], -1)


def answer_blocks(
    answers: Tensor, sizes: list[int], anchors: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """The answer's own tokens behind each anchor.

    Args:
        answers: Token ids of the padded answers [B, R].
        sizes: Their lengths.
        anchors: Roots [B, A].
        block_size: Tokens per block.

    Returns:
        Tokens [B, A, S] and which of them exist.
    """
    index, valid = answer_places(sizes, anchors, block_size)
    padded = answers[:, None].expand(-1, anchors.shape[1], -1)
    return padded.gather(2, index.clamp_max(padded.shape[2] - 1)), valid


def answer_places(sizes: list[int], anchors: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Where in the answers the tokens behind each anchor stand [B, A, S], and which of them exist."""
    index = anchors[..., None] + 1 + torch.arange(block_size, device=anchors.device)
    return index, index < torch.tensor(sizes, device=anchors.device)[:, None, None]


def teacher_rows(values: list[Tensor], anchors: Tensor, block_size: int) -> Tensor:
    """Values [B, A, S, ...] that judge the tokens behind each anchor, from values [R, ...] of each answer."""
    padded = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
    index = anchors[..., None] + torch.arange(block_size, device=anchors.device)
    index = index.clamp_max(padded.shape[1] - 1)
    rows = torch.arange(len(values), device=anchors.device)[:, None, None]
    return padded[rows, index]
