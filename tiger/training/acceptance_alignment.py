"""Stage 2: the drafter learns from what the verifier accepts (paper Eq. 11-15)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from data_modules.collate import Batch
from tiger.drafting.blocks import Routes, Texts, read_blocks, read_texts, route, sample_blocks
from tiger.drafting.lora import without_adapters
from tiger.drafting.routed import RoutedDrafter
from tiger.training.base import DraftTask
from tiger.training.losses import guidance, kl, overlap
from tiger.training.rewards import Credit, RewardName, Test, acceptance, advantages, rewards

Objective = Literal["policy", "overlap"]


class AcceptanceAlignment(DraftTask):
    """Group-relative policy optimisation whose reward is what the verifier accepts.

    Args:
        group_size: Sampled blocks G per anchor.
        reward: What a block earns.
        credit: Which tokens get the credit.
        test: Acceptance test that the reward counts.
        objective: `policy` is the paper's policy gradient; `overlap` (ours) maximises the expected accepted
            length sum_u prod_{m<=u} sum_v min(p, q) along the sampled blocks, differentiated through q.
        kd_weight: Weight of KL(p || q) at the drafted tokens (ours), each weighted by the chance that those
            before it are accepted: what the drafter would have had to know, where it mattered.
        beta: Weight of KL(q || q_ref) to the warm-started drafter.
        temperature: Temperature of the drafts; the same one divides the logits of log q.
        kwargs: Options of `DraftTask`.

    Raises:
        ValueError: If a group has fewer than two blocks, if adapters have dropout, which would score other
            drafts than were sampled, or if training runs in pure half precision, where updates of this size
            vanish.
    """

    def __init__(
        self,
        group_size: int = 4,
        reward: RewardName = "expected_prefix",
        credit: Credit = "prefix",
        test: Test = "sampling",
        objective: Objective = "policy",
        kd_weight: float = 0.0,
        beta: float = 0.02,
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if group_size < 2:
            raise ValueError(
                f"group_size is {group_size}; rewards are compared within a group of two or more."
            )
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; drafts are sampled, so it must be above 0.")
        if self.lora is not None and self.lora.dropout:
            raise ValueError(
                f"lora.dropout is {self.lora.dropout}; drafts are sampled and scored alike, so set it 0."
            )
        self.save_hyperparameters()
        self._reference: RoutedDrafter | None = None

    def configure_model(self) -> None:
        """Loads the pair and keeps a frozen copy of the warm-started drafter as q_ref.

        With adapters no copy is kept: an earlier stage's adapters are folded into the weights and new ones
        start at zero, so the drafter without them is q_ref.
        """
        super().configure_model()
        if self._reference is None and self.options.beta and self.lora is None:
            self._reference = copy.deepcopy(self.drafter).requires_grad_(False).eval()

    @contextmanager
    def reference(self) -> Iterator[RoutedDrafter]:
        """The warm-started drafter, for passes without gradients."""
        if self._reference is not None:
            yield self._reference
        else:
            with without_adapters(self.drafter):
                yield self.drafter

    def on_fit_start(self) -> None:
        """Refuses pure half precision."""
        if self.trainer.precision in ("bf16-true", "16-true"):
            raise ValueError(
                f"precision {self.trainer.precision} loses updates of this size; use bf16-mixed or 32-true."
            )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Route, draft G blocks, verify them in one pass, reward, and update."""
        generator = self.generator(batch_idx)
        texts = self.texts(batch.examples)
        anchors = self.anchors(batch.examples, generator)
        routes = route(self.drafter, texts, anchors)
        temperature = self.options.temperature
        blocks = sample_blocks(
            self.drafter, texts, routes, self.options.group_size, self.block_size, temperature, generator
        )
        prompts = [example.prompt for example in batch.examples]
        answers = [example.response.to(self.device) for example in batch.examples]
        prefixes = self.teacher.prefixes(prompts, answers)
        teacher = self.verifier.logits(self.teacher.score_blocks(prefixes, anchors, blocks))
        student = self.drafter.backbone.logits(read_blocks(self.drafter, texts, routes, blocks))
        inside = until_end(blocks, self.verifier.eos_ids)
        loss = self._objective(teacher, student, blocks, inside, generator, len(prompts))
        if self.options.beta:
            loss = loss + self.options.beta * self._reference_kl(
                texts, routes, answers, blocks, student, inside
            )
        if self.options.guidance_weight and self.drafter.selector == "routed" and texts.bank.shape[1]:
            guide = guidance(routes.scores, self.block_attention(prefixes.lessons, texts, anchors)).mean()
            self.log("loss/guidance", guide, batch_size=len(prompts))
            loss = loss + self.options.guidance_weight * guide
        self.log("loss/total", loss, batch_size=len(prompts))
        return loss

    def _objective(
        self,
        teacher: Tensor,
        student: Tensor,
        blocks: Tensor,
        inside: Tensor,
        generator: torch.Generator,
        size: int,
    ) -> Tensor:
        """Loss of the blocks [B, A, G, S] from both models' logits [B, A, G, S, V]."""
        options = self.options
        log_q = (student.float() / options.temperature).log_softmax(-1)
        chosen = log_q.gather(-1, blocks[..., None])[..., 0]
        chance = acceptance(teacher, chosen, blocks, options.test) * inside
        reward = rewards(options.reward, chance, generator)
        spread = reward.total.std(-1, unbiased=False)
        self.log("reward/mean", reward.total.mean(), batch_size=size, prog_bar=True)
        self.log("reward/std", spread.mean(), batch_size=size)
        self.log("reward/zero_spread", (spread < 1e-4).float().mean(), batch_size=size)
        self.log("reward/entropy", -(log_q.exp() * log_q).sum(-1)[inside].mean(), batch_size=size)
        if options.objective == "overlap":
            alpha = overlap(teacher, student / options.temperature) * inside
            loss = -alpha.cumprod(-1).sum(-1).mean()
        else:
            weight = advantages(reward, options.credit) * inside
            loss = -(weight * chosen).sum(-1).mean()
        if options.kd_weight:
            reached = rewards("expected_prefix", chance).alive * inside
            divergence = (kl(teacher, student) * reached).sum(-1).mean()
            self.log("loss/kd", divergence, batch_size=size)
            loss = loss + options.kd_weight * divergence
        return loss

    def _reference_kl(
        self,
        texts: Texts,
        routes: Routes,
        answers: list[Tensor],
        blocks: Tensor,
        student: Tensor,
        inside: Tensor,
    ) -> Tensor:
        """KL(q || q_ref) summed over each block, for the same routed tokens."""
        with torch.no_grad(), self.reference() as drafter:
            reference = read_texts(drafter, texts.inputs, texts.banks, answers)
            logits = drafter.backbone.logits(read_blocks(drafter, reference, routes, blocks))
        divergence = (kl(student, logits) * inside).sum(-1).mean()
        self.log("reward/kl", divergence, batch_size=len(answers))
        return divergence


def until_end(blocks: Tensor, eos_ids: tuple[int, ...]) -> Tensor:
    """Which tokens of blocks [..., S] stand before or at the first end token."""
    ends = torch.isin(blocks, torch.tensor(eos_ids, device=blocks.device)).long()
    return ends.cumsum(-1) - ends == 0
