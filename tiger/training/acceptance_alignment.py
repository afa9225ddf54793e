"""Stage 2: the drafter learns from what the verifier accepts (paper Eq. 11-15)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from data_modules.collate import Batch
from tiger.backbones.base import Backbone
from tiger.drafting.blocks import Routes, Texts, read_blocks, read_texts, route, sample_blocks
from tiger.drafting.lora import without_adapters
from tiger.drafting.routed import RoutedDrafter
from tiger.training.base import DraftTask
from tiger.training.losses import guidance, kl, overlap
from tiger.training.rewards import Credit, RewardName, Test, acceptance, advantages, rewards
from tiger.training.sharding import gathered

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

    def build(self) -> None:
        """Loads the pair and keeps a frozen copy of the warm-started drafter as q_ref.

        With adapters no copy is kept: an earlier stage's adapters are folded into the weights and new ones
        start at zero, so the drafter without them is q_ref.
        """
        super().build()
        if self.options.beta and self.lora is None:
            self._reference = copy.deepcopy(self.drafter).requires_grad_(False).eval()

    @property
    def frozen(self) -> list[Backbone]:
        """The models that are only read."""
        return super().frozen + ([self._reference.backbone] if self._reference is not None else [])

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
        generators = self.generators(batch.examples, batch_idx)
        texts = self.texts(batch.examples)
        anchors = self.anchors(batch.examples, generators)
        routes = route(self.drafter, texts, anchors)
        size, temperature = self.options.group_size, self.options.temperature
        with gathered(self.drafter.modules()):  # once, not for every token
            blocks = sample_blocks(
                self.drafter, texts, routes, size, self.block_size, temperature, generators
            )
        prompts = [example.prompt for example in batch.examples]
        answers = [example.response.to(self.device) for example in batch.examples]
        prefixes = self.teacher.prefixes(prompts, answers)
        teacher = self.verifier.logits(self.teacher.score_blocks(prefixes, anchors, blocks))
        student = self.drafter.backbone.logits(read_blocks(self.drafter, texts, routes, blocks))
        inside = until_end(blocks, self.verifier.eos_ids)
        loss = self._objective(teacher, student, blocks, inside, generators)
        if self.options.beta:
            loss = loss + self.options.beta * self._reference_kl(
                texts, routes, answers, blocks, student, inside
            )
        if self.options.guidance_weight and self.drafter.selector == "routed":
            guide = guidance(routes.scores, self.block_attention(prefixes.lessons, texts, anchors)).mean()
            self.log("loss/guidance", guide, batch_size=len(prompts), sync_dist=True)
            loss = loss + self.options.guidance_weight * guide
        self.log("loss/total", loss, batch_size=len(prompts), sync_dist=True)
        return loss

    def _objective(
        self,
        teacher: Tensor,
        student: Tensor,
        blocks: Tensor,
        inside: Tensor,
        generators: list[torch.Generator] | None = None,
    ) -> Tensor:
        """Loss of the blocks [B, A, G, S] from both models' logits [B, A, G, S, V]."""
        options, size = self.options, len(blocks)
        log_q = (student.float() / options.temperature).log_softmax(-1)
        chosen = log_q.gather(-1, blocks[..., None])[..., 0]
        chance = acceptance(teacher, chosen, blocks, options.test) * inside
        reward = rewards(options.reward, chance, generators)
        spread = reward.total.std(-1, unbiased=False)
        self.log("reward/mean", reward.total.mean(), batch_size=size, prog_bar=True, sync_dist=True)
        self.log("reward/std", spread.mean(), batch_size=size, sync_dist=True)
        self.log("reward/zero_spread", (spread < 1e-4).float().mean(), batch_size=size, sync_dist=True)
        entropy = -(log_q.exp() * log_q).sum(-1)[inside].mean()
        self.log("reward/entropy", entropy, batch_size=size, sync_dist=True)
        if options.objective == "overlap":
            alpha = overlap(teacher, student / options.temperature) * inside
            loss = -alpha.cumprod(-1).sum(-1).mean()
        else:
            weight = advantages(reward, options.credit) * inside
            loss = -(weight * chosen).sum(-1).mean()
        if options.kd_weight:
            reached = rewards("expected_prefix", chance).alive * inside
            divergence = (kl(teacher, student) * reached).sum(-1).mean()
            self.log("loss/kd", divergence, batch_size=size, sync_dist=True)
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
        self.log("reward/kl", divergence, batch_size=len(answers), sync_dist=True)
        return divergence


def until_end(blocks: Tensor, eos_ids: tuple[int, ...]) -> Tensor:
    """Which tokens of blocks [..., S] stand before or at the first end token."""
    ends = torch.isin(blocks, torch.tensor(eos_ids, device=blocks.device)).long()
    return ends.cumsum(-1) - ends == 0
