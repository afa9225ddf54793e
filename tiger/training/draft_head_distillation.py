"""Draft heads learn what the verifier says along its own answers, from its hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from data_modules.collate import Batch, Example
from tiger.backbones.features import check_layers
from tiger.backbones.loading import Quantization, check_model
from tiger.drafting.heads.base import DraftHead, HeadRow
from tiger.drafting.heads.routed_head import HeadRoutes, RoutedHead
from tiger.drafting.heads.saving import build_head, check_head, load_weights
from tiger.training.base import DraftTask
from tiger.training.block_attention import over_blocks
from tiger.training.draft_vocabulary import frequent_ids
from tiger.training.head_lessons import HeadLesson, keep_lesson, read_head_lessons, restore_lesson
from tiger.training.kd_warm_start import answer_places, teacher_rows
from tiger.training.losses import ce, chunked, guidance, list_mle, overlap, soft_ce, tv
from tiger.training.ranks import global_mean
from tiger.training.supervision import check_supervision, supervised_tokens
from tiger.training.teacher_cache import CacheSettings, TeacherCache, open_cache
from tiger.training.views import recalled

SCORED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "soft_ce": soft_ce,
    "ce": ce,
    "tv": tv,
    "list_mle": list_mle,
}
NOISE_LENGTH = 512  # text length at which `noise` is the width itself


@dataclass(frozen=True)
class Judged:
    """What the verifier makes of all predictions P behind the roots of a step.

    Attributes:
        losses: Losses of each prediction [P, losses], in the order of the task's `weights`.
        counts: Whether it counts [P], 0 or 1.
        depths: Tokens between it and its root [P].
        marks: Which tokens [T] of each text, but its first, are supervised.
        guide: How far the router is from where the verifier looks [roots]; None where nothing is guided.
        prefix: Expected accepted tokens of each block [B, A]; None where they are not asked for.
    """

    losses: Tensor
    counts: Tensor
    depths: Tensor
    marks: list[Tensor]
    guide: Tensor | None
    prefix: Tensor | None


class DraftHeadDistillation(DraftTask):
    """Distillation of a draft head from the verifier, with the losses of its method's paper as weights.

    Args:
        verifier: Hub id, folder or shipped name of the verifier.
        method: Name of the draft head.
        head: Options of its constructor.
        init_from: Folder of a trained head of the same method and options, whose weights are the start.
        block_size: Tokens drafted in a round of validation.
        depth: Tokens S that are predicted behind each root in training; None for as many as `block_size`.
        num_anchors: Roots per answer and step, one in each of as many equal parts; None for all tokens.
        soft_ce_weight: Weight of the cross-entropy with the verifier's distribution.
        ce_weight: Weight of the cross-entropy with its likeliest token.
        tv_weight: Weight of the total variation distance, half of sum_v |q - p|.
        feature_weight: Weight of the smooth L1 distance to the verifier's final hidden states.
        list_mle_weight: Weight of the likelihood of its order of the ten likeliest tokens.
        prefix_weight: Weight of the expected number of accepted tokens of a block, which is raised:
            sum_u prod_{i<=u} alpha_i, alpha_i being the chance that a token drawn at place i is accepted.
            This is acceptance alignment without rollouts (ours), along the verifier's own answer, where
            greedy decoding accepts. It also teaches a routed head its draft temperature.
        decay: Factor of a place's weight for each token between it and the root.
        guidance_weight: Weight of block attention guidance for the router of a routed head.
        guidance_layers: Last verifier layers whose attention guides it, 1 or more.
        guidance_power: Exponent of each head's attention before it is averaged.
        noise: Width of uniform noise on the features at 512 tokens; of T tokens it is 512/T as wide (EAGLE).
        verifier_dtype: Weight type of the frozen verifier; heads learn in float32.
        verifier_quantization: Store its weights in 4 or 8 bits; needs the extra `quantization`.
        optimizer: Builds the optimizer from the trainable parameters.
        warmup_steps: Optimizer steps of linear warm-up.
        decay_steps: Optimizer steps after which a linear decay has reached zero; 0 keeps the rate constant.
        max_new_tokens: Longest validation answer, tokens.
        validation_temperature: Temperature of validation decoding.
        remember: Keep the verifier's lessons of each example in memory, so that later epochs need no pass of
            it: hidden states of the whole text, layers times width numbers per token.
        teacher_cache: Folder of lessons that `data cache-teacher` made, which replaces the verifier's passes
            in training. None reads live.
        seed: Seed of anchors, noise and drafts.

    Raises:
        ValueError: If an option is out of range, or the head does not take an option or fit the verifier.
    """

    def __init__(
        self,
        verifier: str = "tiny/verifier",
        method: str = "eagle3",
        head: dict[str, Any] | None = None,
        init_from: str | None = None,
        block_size: int = 5,
        depth: int | None = None,
        num_anchors: int | None = None,
        soft_ce_weight: float = 1.0,
        ce_weight: float = 0.0,
        tv_weight: float = 0.0,
        feature_weight: float = 0.0,
        list_mle_weight: float = 0.0,
        prefix_weight: float = 0.0,
        decay: float = 1.0,
        guidance_weight: float = 0.0,
        guidance_layers: int = 4,
        guidance_power: float = 2.0,
        noise: float = 0.0,
        verifier_dtype: str = "float32",
        verifier_quantization: Quantization | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        warmup_steps: int = 0,
        decay_steps: int = 0,
        max_new_tokens: int = 96,
        validation_temperature: float = 0.0,
        remember: bool = False,
        teacher_cache: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            block_size=block_size,
            num_anchors=1 if num_anchors is None else num_anchors,
            guidance_layers=guidance_layers,
            optimizer=optimizer,
        )
        weights = {
            "soft_ce": soft_ce_weight,
            "ce": ce_weight,
            "tv": tv_weight,
            "list_mle": list_mle_weight,
            "feature": feature_weight,
        }
        given = weights | {"prefix": prefix_weight}
        if min(given.values()) < 0 or not any(given.values()):
            raise ValueError(f"The loss weights are {given}; give none below 0 and one or more above.")
        if (depth is not None and depth < 1) or not 0 < decay <= 1 or noise < 0:
            raise ValueError(
                f"depth {depth} must be 1 or more, decay {decay} above 0 and at most 1, noise {noise} not "
                "below 0."
            )
        self.save_hyperparameters()
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.studied: dict[str, HeadLesson] = {}
        self.cache: TeacherCache | None = None

    @property
    def drafter(self) -> DraftHead:  # type: ignore[override]  # in a routed drafter's place
        """The head in training."""
        assert self._drafter is not None, "configure_model has not run"
        head: DraftHead = self._drafter
        return head

    @property
    def depth(self) -> int:
        """Tokens S that are predicted behind each root."""
        return int(self.options.depth or self.block_size)

    @property
    def parts(self) -> dict[str, nn.Module]:
        """What learns, by the names that gradient norms are logged by."""
        return {"drafter": self.drafter}

    def prepare_data(self) -> None:
        """Checks that the verifier and the head to start from are there; see `building.check`."""
        check_model(self.options.verifier)
        if self.options.init_from:
            check_head(Path(self.options.init_from))

    def build_drafter(self) -> DraftHead:
        """The head, new or from `init_from`, in training mode.

        Raises:
            ValueError: If it has no router, but one is to be guided.
        """
        options = self.options
        head = build_head(options.method, self.verifier, **(options.head or {}))
        check_layers(self.verifier, head.feature_layers)
        if options.guidance_weight and not isinstance(head, RoutedHead):
            raise ValueError(f"Head {options.method!r} has no router to guide; set guidance_weight 0.")
        if options.init_from:
            load_weights(head, Path(options.init_from))
        if isinstance(head, RoutedHead):
            head.log_draft_temperature.requires_grad_(bool(options.prefix_weight))
        return head.float().train()

    def shard_models(self) -> None:
        """Refuses: a head is small.

        Raises:
            ValueError: Always.
        """
        raise ValueError("Draft heads are small and train whole on every rank; use the ddp strategy.")

    def whole_drafter(self) -> DraftHead:  # type: ignore[override]  # as `drafter`
        """The head, to be saved."""
        return self.drafter

    def anchors(self, examples: list[Example], generators: list[torch.Generator]) -> Tensor:
        """Roots [B, A] in each answer; without `num_anchors`, all of the longest one's that a token follows.

        Shorter answers have no token behind the last of these.
        """
        if self.options.num_anchors is not None:
            return super().anchors(examples, generators)
        longest = max(len(example.response) for example in examples)
        return torch.arange(max(longest - 1, 1), device=self.device).expand(len(examples), -1)

    def on_train_start(self) -> None:
        """Opens the teacher cache; chooses the draft vocabulary of a new head, a resumed one keeps its own.

        Raises:
            FileNotFoundError: If there is no cache, or it is not whole.
            ValueError: If it was made by another verifier, on other data, or for another head.
        """
        super().on_train_start()
        loader: Any = self.trainer.train_dataloader
        if folder := self.options.teacher_cache:
            self.cache = open_cache(
                Path(folder), lambda made: self.cache_settings(loader, None, made.shard_size)
            )
        if self.trainer.ckpt_path is None and not self.options.init_from:
            self.choose_vocabulary(loader.dataset)

    def cache_settings(self, loader: Any, top_k: int | None, shard_size: int) -> CacheSettings:
        """What a teacher cache for this head and the data of a loader depends on; `top_k` is for KD alone."""
        options = self.options
        guidance = (options.guidance_layers, float(options.guidance_power))
        return CacheSettings(
            self._verifier_mark,
            options.verifier_dtype,
            loader.identity,
            temperature=None,
            top_k=None,
            guidance=guidance if options.guidance_weight else None,
            num_examples=len(loader.dataset),
            shard_size=shard_size,
            layers=self.drafter.feature_layers,
        )

    def kept_lessons(self, examples: list[Example], settings: CacheSettings) -> list[dict[str, Tensor]]:
        """What a teacher cache keeps of the verifier's lessons on some examples."""
        return [keep_lesson(lesson) for lesson in self.study(examples)]

    def choose_vocabulary(self, examples: Any) -> None:
        """Restricts a draft vocabulary to the most frequent tokens of the training answers."""
        if (ids := self.drafter.draft_ids) is not None:
            verifier = self.verifier
            self.drafter.restrict(frequent_ids(examples, len(ids), verifier.eos_ids, verifier.vocab_size))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # as the base
        """The head whole, with its draft vocabulary; the verifier comes from where the options say."""
        state = LightningModule.state_dict(self, *args, **kwargs)
        return {name: value for name, value in state.items() if name.startswith("_drafter.")}

    def head_lessons(self, examples: list[Example]) -> list[HeadLesson]:
        """What the verifier makes of prompts and answers: live or from disk, and remembered if asked for."""
        source = self.study if self.cache is None else self.restored
        return recalled(self.studied if self.options.remember else None, examples, source)

    def study(self, examples: list[Example]) -> list[HeadLesson]:
        """Lessons by a pass of the verifier."""
        answers = [example.response.to(self.device) for example in examples]
        prompts, options = [example.prompt for example in examples], self.options
        layers = options.guidance_layers if options.guidance_weight else 0
        return read_head_lessons(
            self.verifier, self.drafter.feature_layers, prompts, answers, layers, options.guidance_power
        )

    def restored(self, examples: list[Example]) -> list[HeadLesson]:
        """Lessons from the teacher cache."""
        assert self.cache is not None, "on_train_start has not run"
        kept = [self.cache(example.prompt.id, self.device) for example in examples]
        return [restore_lesson(entry, self.verifier) for entry in kept]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Predicts the tokens behind all anchors and imitates the verifier there.

        Raises:
            ValueError: If no token, or every token, of an epoch's first batch is supervised.
        """
        size, judged = len(batch.examples), self.judge(batch.examples, batch_idx)
        if batch_idx == 0:
            check_supervision(torch.cat(judged.marks))
        share = global_mean(torch.cat(judged.marks).float())
        self.log("loss/supervised_share", share, batch_size=size, sync_dist=True)
        importance = float(self.options.decay) ** judged.depths * judged.counts
        means = global_mean(judged.losses * importance[:, None], importance.sum())
        for name, mean in zip(self.weights, means, strict=True):
            self.log(f"loss/{name}", mean, batch_size=size, sync_dist=True)
        loss = (means * means.new_tensor(list(self.weights.values()))).sum()
        if judged.guide is not None:
            self.log("loss/guidance", judged.guide.mean(), batch_size=size, sync_dist=True)
            loss = loss + self.options.guidance_weight * judged.guide.mean()
        if judged.prefix is not None:
            expected = global_mean(judged.prefix.flatten())
            self.log("reward/expected_prefix", expected, batch_size=size, prog_bar=True, sync_dist=True)
            loss = loss - self.options.prefix_weight * expected
        self.log("loss/total", loss, batch_size=size, prog_bar=True, sync_dist=True)
        return loss

    def judge(self, examples: list[Example], batch_index: int) -> Judged:
        """Judges all predictions behind the roots of a step."""
        lessons = self.head_lessons(examples)
        generators = self.generators(examples, batch_index)
        anchors = self.anchors(examples, generators)
        rows = [self.noised(entry.row, g) for entry, g in zip(lessons, generators, strict=True)]
        text = self.drafter.text(rows)
        starts = [lesson.start for lesson in lessons]
        last = torch.tensor(text.lengths, device=self.device)[:, None] - 1
        roots = (torch.tensor(starts, device=self.device)[:, None] + anchors).minimum(last)
        guide: Tensor | None = None
        if isinstance(self.drafter, RoutedHead):
            routes = self.drafter.route(text, roots)
            hidden = self.drafter.unroll(text, roots, self.depth, routes)
            if self.options.guidance_weight:
                guide = self.guide(routes, lessons, anchors)
        else:
            hidden = self.drafter.unroll(text, roots, self.depth)
        index, valid = answer_places([len(lesson.hidden) for lesson in lessons], anchors, self.depth)
        targets = teacher_rows([lesson.hidden for lesson in lessons], anchors, self.depth)
        depths = torch.arange(self.depth, device=self.device).expand(valid.shape)[valid]
        inputs = hidden[valid], targets[valid], depths
        terms = chunked(self._terms, *inputs, vocab_size=self.verifier.vocab_size)
        counts, chances = terms[:, -1].detach(), terms[:, -2]
        judged = valid.clone()
        judged[valid] = counts > 0
        prefix: Tensor | None = None
        if self.options.prefix_weight:
            placed = torch.zeros(valid.shape, device=self.device).masked_scatter(valid, chances * counts)
            prefix = placed.cumprod(-1).sum(-1)
        marks = supervised_tokens(starts, text.lengths, index, judged)
        return Judged(terms[:, : len(self.weights)], counts, depths, marks, guide, prefix)

    def guide(self, routes: HeadRoutes, lessons: list[HeadLesson], anchors: Tensor) -> Tensor:
        """Cross-entropy of the router's scores with where the verifier looks while it writes each block."""
        values = []
        for row, lesson in enumerate(lessons):
            assert lesson.attention is not None, "the lesson was read without guidance"
            start = anchors[row].clamp_max(len(lesson.attention) - 1)
            attention = over_blocks(lesson.attention.float(), start, self.depth)
            scores = routes.scores[row][:, routes.visual[row]]
            values.append(guidance(scores, attention) if scores.shape[-1] else scores.new_zeros(len(scores)))
        return torch.cat(values)

    def noised(self, row: HeadRow, generator: torch.Generator) -> HeadRow:
        """A text with noise on its features."""
        if not self.options.noise:
            return row
        width = self.options.noise * NOISE_LENGTH / len(row.features)
        draws = torch.rand(row.features.shape, generator=generator, device=self.device) - 0.5
        return replace(row, features=row.features + (width * draws).to(row.features.dtype))

    def _terms(self, student: Tensor, teacher: Tensor, depths: Tensor) -> Tensor:
        """Losses of predictions, chances of a token drawn there to be accepted, and whether they count.

        Args:
            student: Hidden states of the head [P, D].
            teacher: Final hidden states of the verifier [P, D].
            depths: Tokens between root and prediction [P].

        Returns:
            Columns [P, losses + 2]; chances are 0 where they are not asked for.
        """
        scores, logits = self.drafter.score(student, depths), self.verifier.logits(teacher)
        counts = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        if (ids := self.drafter.draft_ids) is not None:
            counts, logits = torch.isin(logits.argmax(-1), ids), logits[:, ids]
        values = [SCORED[name](logits, scores) for name in self.weights if name in SCORED]
        if "feature" in self.weights:
            values.append(F.smooth_l1_loss(student.float(), teacher.float(), reduction="none").mean(-1))
        chance = torch.zeros(len(logits), device=logits.device)
        if self.options.prefix_weight:
            drafts = self.drafter.temper(scores) if isinstance(self.drafter, RoutedHead) else scores
            chance = overlap(logits, drafts)
        return torch.stack([*values, chance, counts.float()], -1)
