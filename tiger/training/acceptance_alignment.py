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
from tiger.drafting.blocks import Routes, Sampler, Texts, read_blocks, read_texts, route
from tiger.drafting.lora import without_adapters
from tiger.drafting.routed import RoutedDrafter
from tiger.training.base import DraftTask
from tiger.training.block_attention import block_attention
from tiger.training.losses import chunked, guidance, kl, overlap
from tiger.training.ranks import global_mean
from tiger.training.rewards import Credit, RewardName, Test, advantages, rewards
from tiger.training.rollouts import Rollouts, roll_out
from tiger.training.sharding import gathered

Objective = Literal["policy", "overlap"]


class AcceptanceAlignment(DraftTask):
    """Group-relative policy optimisation whose reward is what the verifier accepts.

    Args:
        group_size: Sampled blocks G per anchor; `overlap` compares none and needs only one.
        reward: What a block earns.
        credit: Which tokens get the credit.
        test: Acceptance test that the reward counts.
        objective: `policy` is the paper's policy gradient; `overlap` (ours) maximises the expected accepted
            length sum_u prod_{m<=u} sum_v min(p, q) along the sampled blocks, differentiated through q.
        kd_weight: Weight of KL(p || q) at the drafted tokens (ours), each weighted by the chance that those
            before it are accepted: what the drafter would have had to know, where it mattered.
        beta: Weight of KL(q || q_ref) to the warm-started drafter, both at draft temperature 1.
        temperature_lr: Learning rate of the draft temperature (ours), which all drafts share and imitation
            cannot find: where the drafter is unsure, what imitates best is not what is accepted most. 0 keeps
            it as it is. Needs objective `overlap`. `kd_weight` compares at draft temperature 1.
        rollout_chunk: Tokens that are drafted before the verifier judges them; a block goes on only while all
            of it passed. The policy gradient stays what it is with whole blocks, for a fraction of the work;
            `kd_weight` and `beta` then count the tokens up to the first failed one, each fully. None drafts
            whole blocks. Needs objective `policy`, credit `prefix`, layout `suffix`, and reward
            `accepted_prefix`, `binary`, or with test `greedy` also `expected_prefix`.
        temperature: Temperature of the drafts; the same one divides the logits of log q.
        kwargs: Options of `DraftTask`.

    Raises:
        ValueError: If a group has too few blocks to be compared, if blocks cannot stop early without
            changing the loss, if adapters have dropout, which would score other drafts than were sampled, or
            if training runs in pure half precision, where updates of this size vanish.
    """

    def __init__(
        self,
        group_size: int = 4,
        reward: RewardName = "expected_prefix",
        credit: Credit = "prefix",
        test: Test = "sampling",
        objective: Objective = "policy",
        kd_weight: float = 0.0,
        rollout_chunk: int | None = None,
        beta: float = 0.02,
        temperature_lr: float = 0.0,
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if group_size < (least := 2 if objective == "policy" else 1):
            raise ValueError(
                f"group_size is {group_size}; objective {objective} needs {least} or more: the policy "
                "gradient compares rewards within a group."
            )
        if temperature_lr < 0:
            raise ValueError(f"temperature_lr is {temperature_lr}; set 0 to keep the draft temperature.")
        if temperature_lr and objective == "policy":
            # It holds the chances of acceptance fixed, but a factor of all logits changes them all.
            raise ValueError(
                "temperature_lr needs objective overlap; the policy gradient finds the wrong draft "
                "temperature. Set temperature_lr 0 or the other objective."
            )
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; drafts are sampled, so it must be above 0.")
        if self.lora is not None and self.lora.dropout:
            raise ValueError(
                f"lora.dropout is {self.lora.dropout}; drafts are sampled and scored alike, so set it 0."
            )
        if rollout_chunk is not None:
            check_rollout_chunk(rollout_chunk, reward, credit, test, objective)
        self.save_hyperparameters()
        self._reference: RoutedDrafter | None = None

    def build(self) -> None:
        """Loads the pair and keeps a frozen copy of the warm-started drafter as q_ref.

        With adapters no copy is kept: an earlier stage's adapters are folded into the weights and new ones
        start at zero, so the drafter without them is q_ref.

        Raises:
            ValueError: If blocks of the drafter's layout cannot stop early.
        """
        super().build()
        self.drafter.log_draft_temperature.requires_grad_(self.options.temperature_lr > 0)
        if self.options.rollout_chunk is not None and self.drafter.layout == "inline":
            raise ValueError(
                "rollout_chunk needs layout suffix: with layout inline the blocks of a group share no text "
                "that is read once, so each chunk would be read from the beginning. Set one of the two."
            )
        if self.options.beta and self.lora is None:
            self._reference = copy.deepcopy(self.drafter).requires_grad_(False).eval()

    def parameter_groups(self) -> list[Any]:
        """The trainable parameters; the draft temperature has its own learning rate and no decay."""
        temperature = self.drafter.log_draft_temperature
        if not temperature.requires_grad:
            return super().parameter_groups()
        others = [parameter for parameter in super().parameter_groups() if parameter is not temperature]
        own = {"params": [temperature], "lr": self.options.temperature_lr, "weight_decay": 0.0}
        return [{"params": others}, own]

    @property
    def frozen(self) -> list[Backbone]:
        """The models that are only read."""
        return super().frozen + ([self._reference.backbone] if self._reference is not None else [])

    @property
    def compares(self) -> bool:
        """Whether the loss compares whole distributions with the verifier's."""
        return self.options.objective == "overlap" or bool(self.options.kd_weight)

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
        """Route, draft G blocks, verify them, reward, and update."""
        generators = self.generators(batch.examples, batch_idx)
        texts = self.texts(batch.examples)
        anchors = self.anchors(batch.examples, generators)
        routes = route(self.drafter, texts, anchors, generators)
        answers = [example.response.to(self.device) for example in batch.examples]
        prefixes = self.teacher.prefixes([example.prompt for example in batch.examples], answers)
        options, group = self.options, self.options.group_size
        shape = (2, anchors.shape[1], group, self.block_size)
        draws, tests = torch.stack(
            [torch.rand(shape, generator=g, device=self.device) for g in generators], 1
        )
        with gathered(self.drafter.modules()):  # once, not for every token
            rollouts = roll_out(
                Sampler(self.drafter, texts, routes, draws, options.temperature),
                self.teacher.branches(prefixes, anchors, group),
                tests,
                options.test,
                options.rollout_chunk,
            )
        terms = self._terms(rollouts, texts, routes, answers)
        loss = self._objective(rollouts, terms, tests)
        if self.is_guided:
            attention = block_attention(prefixes.lessons, texts, anchors, self.block_size)
            guide = guidance(routes.scores, attention).mean()
            self.log("loss/guidance", guide, batch_size=len(answers), sync_dist=True)
            loss = loss + options.guidance_weight * guide
        self.log("loss/total", loss, batch_size=len(answers), sync_dist=True)
        return loss

    def _terms(
        self, rollouts: Rollouts, texts: Texts, routes: Routes, answers: list[Tensor]
    ) -> dict[str, Tensor]:
        """What the loss needs of each token [B, A, G, S], 0 where the token does not count.

        `chosen`: log q of the token. `entropy` of q, without gradient. If the options ask for it, `overlap`
        with the verifier, `kd`: KL(p || q), and `reference`: KL(q || q_ref).
        """
        options, counts = self.options, rollouts.counts
        hidden = read_blocks(self.drafter, texts, routes, rollouts.blocks, counts)[counts]
        inputs = [hidden, rollouts.blocks[counts], rollouts.hidden[counts]]
        if options.beta:
            inputs.append(self._reference_hidden(rollouts, texts, routes, answers)[counts])

        def values(hidden: Tensor, tokens: Tensor, judge: Tensor, *reference: Tensor) -> Tensor:
            logits = self.drafter.backbone.logits(hidden)
            drafts = self.drafter.temper(logits).float() / options.temperature
            log_q = drafts.log_softmax(-1)
            entropy = -(log_q.detach().exp() * log_q.detach()).sum(-1)
            columns = [log_q.gather(-1, tokens[:, None])[:, 0], entropy]
            if self.compares:
                target = self.verifier.logits(judge)
                columns += [overlap(target, drafts), kl(target, logits)]
            if reference:
                columns.append(kl(logits, self._reference_logits(reference[0])))
            return torch.stack(columns, -1)

        found = chunked(values, *inputs, vocab_size=self.verifier.vocab_size)
        names = ["chosen", "entropy", *["overlap", "kd"] * self.compares, *["reference"] * bool(options.beta)]
        return {
            name: torch.zeros_like(rollouts.chance).masked_scatter(counts, column)
            for name, column in zip(names, found.unbind(-1), strict=True)
        }

    def _objective(self, rollouts: Rollouts, terms: dict[str, Tensor], tests: Tensor) -> Tensor:
        """Loss of the blocks from the terms of their tokens and the random numbers of their tests."""
        options, counts, size = self.options, rollouts.counts, len(tests)
        reward = rewards(options.reward, rollouts.chance, tests)
        spread = reward.total.std(-1, unbiased=False)
        self.log("reward/mean", reward.total.mean(), batch_size=size, prog_bar=True, sync_dist=True)
        self.log("reward/std", spread.mean(), batch_size=size, sync_dist=True)
        self.log("reward/zero_spread", (spread < 1e-4).float().mean(), batch_size=size, sync_dist=True)
        entropy = global_mean(terms["entropy"][counts])
        self.log("reward/entropy", entropy, batch_size=size, sync_dist=True)
        self.log("reward/draft_temperature", self.drafter.draft_temperature, batch_size=size)
        if options.objective == "overlap":
            loss = -terms["overlap"].cumprod(-1).sum(-1).mean()
        else:
            weight = advantages(reward, options.credit) * counts
            loss = -(weight * terms["chosen"]).sum(-1).mean()
        if options.kd_weight:
            # What an early-stopped rollout drew is reached; its share of all draws is the chance of that.
            early = options.rollout_chunk is not None
            reached = counts if early else rewards("expected_prefix", rollouts.chance, tests).alive
            divergence = (terms["kd"] * reached).sum(-1).mean()
            self.log("loss/kd", divergence, batch_size=size, sync_dist=True)
            loss = loss + options.kd_weight * divergence
        if options.beta:
            divergence = terms["reference"].sum(-1).mean()
            self.log("reward/kl", divergence, batch_size=size, sync_dist=True)
            loss = loss + options.beta * divergence
        return loss

    @torch.no_grad()
    def _reference_hidden(
        self, rollouts: Rollouts, texts: Texts, routes: Routes, answers: list[Tensor]
    ) -> Tensor:
        """Hidden states of q_ref [B, A, G, S, D] for the same routed tokens."""
        with self.reference() as drafter:
            reference = read_texts(drafter, texts.inputs, texts.banks, answers)
            return read_blocks(drafter, reference, routes, rollouts.blocks, rollouts.counts)

    @torch.no_grad()
    def _reference_logits(self, hidden: Tensor) -> Tensor:
        with self.reference() as drafter:
            return drafter.backbone.logits(hidden)


def check_rollout_chunk(chunk: int, reward: str, credit: str, test: str, objective: str) -> None:
    """Checks that a block earns nothing, and no token of it gets credit, behind its first failed test.

    Raises:
        ValueError: If rollouts cannot stop there without changing the loss.
    """
    if chunk < 1:
        raise ValueError(
            f"rollout_chunk is {chunk}; draft 1 token or more at a time, or null for whole blocks."
        )
    reasons = {
        "objective overlap pays for every token by its chance; use objective policy": objective == "overlap",
        "credit block gives every token of a block its reward; use credit prefix": credit == "block",
        "reward token_agreement pays for tokens behind a failed one; use accepted_prefix": (
            reward == "token_agreement"
        ),
        "reward expected_prefix with test sampling draws no test that a block could fail; use its noisy form "
        "accepted_prefix": reward == "expected_prefix" and test == "sampling",
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"rollout_chunk stops a block at its first failed token, but {reason}, or null.")
