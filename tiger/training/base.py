"""What both training stages share: frozen verifier, drafter, anchors, and validation by real decoding."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from data_modules.collate import Batch, Example
from tiger.backbones.base import Backbone, ModelInputs, VisualBank
from tiger.backbones.checkpointing import checkpoint_layers
from tiger.backbones.loading import Quantization, check_pair, load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import Generation
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.blocks import Texts, read_texts
from tiger.drafting.lora import Lora, add_adapters
from tiger.drafting.routed import Layout, Query, RoutedDrafter
from tiger.drafting.saving import load_drafter
from tiger.routing.selectors import SelectorName
from tiger.training.checkpoints import (
    LORA_KEY,
    STAGE_KEY,
    VERIFIER_KEY,
    check_stage,
    check_verifier,
    check_weights,
    fingerprint,
    load_stage,
)
from tiger.training.teacher import Lesson, Teacher, resample

T = TypeVar("T")


class DraftTask(LightningModule, ABC):
    """A stage of drafter training.

    Args:
        verifier: Hub id, folder or shipped name of the verifier.
        drafter: The same of the drafter to start from.
        init_from: Lightning checkpoint of an earlier stage, whose drafter weights replace those of `drafter`.
        selector: Routing policy; None keeps the drafter's own. The same holds for the next three.
        layout: Where routed tokens stand.
        query: Whether the routing query has seen the global visual token.
        num_routed: K.
        block_size: Tokens per block, both in training and in validation.
        num_anchors: Blocks per answer and step.
        guidance_weight: Weight of block attention guidance for the router.
        guidance_layers: Last verifier layers whose attention guides the router.
        guidance_power: Exponent of each head's attention before it is averaged. Most heads look everywhere;
            the square lets those that look at one place stand out.
        lora: Adapters to train in place of the drafter's language model, as `{rank: 16}`; null trains the
            model itself. The router is trained fully in both cases.
        train_vision: Whether the drafter's vision tower learns too.
        gradient_checkpointing: Recompute the drafter's layers in the backward pass: less memory, more time.
        verifier_dtype: Weight type of the frozen verifier.
        verifier_quantization: Store its weights in 4 or 8 bits; needs the extra `quantization`.
        optimizer: Builds the optimizer from the trainable parameters.
        warmup_steps: Optimizer steps of linear warm-up.
        decay_steps: Optimizer steps after which a linear decay has reached zero; 0 keeps the rate constant.
        max_new_tokens: Longest validation answer, tokens.
        validation_temperature: Temperature of validation decoding.
        remember: Keep the drafter's visual banks, and in KD the verifier's lessons, of each example in
            memory, so that later epochs do not recompute them. Needs a frozen vision tower.
        seed: Seed of anchors, drafts and tests.

    Raises:
        ValueError: If the options contradict one another or the pair does not fit.
    """

    def __init__(
        self,
        verifier: str = "tiny/verifier",
        drafter: str = "tiny/vanilla",
        init_from: str | None = None,
        selector: SelectorName | None = "routed",
        layout: Layout | None = "suffix",
        query: Query | None = "visual",
        num_routed: int | None = 8,
        block_size: int = 8,
        num_anchors: int = 4,
        guidance_weight: float = 1.0,
        guidance_layers: int = 4,
        guidance_power: float = 2.0,
        lora: Lora | None = None,
        train_vision: bool = False,
        gradient_checkpointing: bool = False,
        verifier_dtype: str = "float32",
        verifier_quantization: Quantization | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        warmup_steps: int = 0,
        decay_steps: int = 0,
        max_new_tokens: int = 96,
        validation_temperature: float = 0.0,
        remember: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(block_size, num_anchors) < 1:
            raise ValueError(f"block_size {block_size} and num_anchors {num_anchors} must be 1 or more.")
        if remember and train_vision:
            raise ValueError(
                "remember keeps visual banks, which change while the tower trains; set one of them off."
            )
        self.save_hyperparameters()
        self.strict_loading = False
        self.optimizer, self.lora = optimizer, lora
        self.learnt: dict[str, Lesson] = {}
        self.views: dict[str, tuple[ModelInputs, VisualBank]] = {}
        self._drafter: RoutedDrafter | None = None

    def configure_model(self) -> None:
        """Loads both models; the verifier stays frozen, in evaluation mode and out of checkpoints."""
        if self._drafter is not None:
            return
        options = self.options
        verifier = load_backbone(
            options.verifier, options.verifier_dtype, quantization=options.verifier_quantization
        )
        drafter = load_drafter(
            options.drafter,
            selector=options.selector,
            layout=options.layout,
            query=options.query,
            num_routed=options.num_routed,
        )
        check_pair(verifier, drafter.backbone)
        self.verifier: Backbone = verifier.requires_grad_(False).eval()
        self._verifier_mark = fingerprint(verifier.model)
        self.teacher = Teacher(self.verifier, options.guidance_layers, options.guidance_power)
        if options.init_from:
            load_stage(drafter, Path(options.init_from), self._verifier_mark)
        drafter.requires_grad_(True)
        if self.lora is not None:
            add_adapters(drafter, self.lora)
        if options.gradient_checkpointing:
            checkpoint_layers(drafter.backbone)
        for parameter in drafter.backbone.vision_parameters():
            parameter.requires_grad_(options.train_vision)
        self._drafter = drafter.train()

    @property
    def options(self) -> Any:
        """The constructor's arguments."""
        return self.hparams

    @property
    def drafter(self) -> RoutedDrafter:
        """The drafter in training."""
        assert self._drafter is not None, "configure_model has not run"
        return self._drafter

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return int(self.options.block_size)

    def train(self, mode: bool = True) -> DraftTask:
        """Sets the mode of the drafter; the verifier always stays in evaluation mode."""
        super().train(mode)
        if self._drafter is not None:
            self.verifier.eval()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The weights that are trained; all others come from the models that the options name."""
        state = super().state_dict(*args, **kwargs)
        parameters = self.named_parameters(remove_duplicate=False)
        trained = {name for name, parameter in parameters if parameter.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Notes the stage, which verifier the drafter learns from, and its adapters."""
        checkpoint[STAGE_KEY] = type(self).__name__
        checkpoint[VERIFIER_KEY] = self._verifier_mark
        checkpoint[LORA_KEY] = self.lora and asdict(self.lora)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint of another stage or verifier.

        Raises:
            ValueError: If it does not continue with this stage, or the drafter learnt from another verifier.
        """
        check_stage(checkpoint, type(self).__name__)
        check_verifier(checkpoint, self._verifier_mark)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads a checkpoint that must hold every weight that is trained.

        Raises:
            ValueError: If weights are missing, unknown or of another shape.
        """
        check_weights(super().state_dict(), state_dict, self.state_dict().keys())
        return super().load_state_dict(state_dict, strict=False, assign=assign)

    def configure_optimizers(self) -> Any:
        """The optimizer over trainable parameters, with warm-up and decay per optimizer step."""
        optimizer = self.optimizer([p for p in self.parameters() if p.requires_grad])
        warmup, decay = self.options.warmup_steps, self.options.decay_steps

        def factor(step: int) -> float:
            rise = min(1.0, (step + 1) / max(warmup, 1))
            return rise * (max(0.0, 1.0 - step / decay) if decay else 1.0)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def generator(self, batch_index: int) -> torch.Generator:
        """Randomness of one training step: a function of seed, rank, epoch and batch only."""
        value = (
            (self.options.seed * 1009 + self.global_rank) * 10007 + self.current_epoch
        ) * 1_000_003 + batch_index
        return torch.Generator(self.device).manual_seed(value % 2**63)

    def anchors(self, examples: list[Example], generator: torch.Generator) -> Tensor:
        """Draws roots [B, A] in each answer, leaving a token to draft where the answer has two."""
        last = torch.tensor([max(len(example.response) - 1, 1) for example in examples], device=self.device)
        uniform = torch.rand(len(examples), self.options.num_anchors, generator=generator, device=self.device)
        return (uniform * last[:, None]).long()

    def texts(self, examples: list[Example]) -> Texts:
        """Prompts and answers as the drafter reads them; visual banks are remembered if asked for."""
        answers = [example.response.to(self.device) for example in examples]
        views = self._recall(self.views, examples, self._look)
        return read_texts(self.drafter, [view[0] for view in views], [view[1] for view in views], answers)

    def lessons(self, examples: list[Example]) -> list[Lesson]:
        """What the verifier teaches along the answers, remembered if asked for."""

        def learn(new: list[Example]) -> list[Lesson]:
            return self.teacher.read([e.prompt for e in new], [e.response.to(self.device) for e in new])

        return self._recall(self.learnt, examples, learn)

    def _look(self, examples: list[Example]) -> list[tuple[ModelInputs, VisualBank]]:
        with torch.set_grad_enabled(self.options.train_vision and torch.is_grad_enabled()):
            inputs, banks = self.drafter.encode([example.prompt for example in examples])
        return [(replace(entry, pixels={}), bank) for entry, bank in zip(inputs, banks, strict=True)]

    def _recall(
        self, memory: dict[str, T], examples: list[Example], make: Callable[[list[Example]], list[T]]
    ) -> list[T]:
        """Values of all examples, made in one go where they are not remembered."""
        if not self.options.remember:
            return make(examples)
        if not all(example.prompt.id for example in examples):
            raise ValueError(
                "remember needs prompts with an id of their own; name them or set remember false."
            )
        if new := [example for example in examples if example.prompt.id not in memory]:
            memory.update((e.prompt.id, value) for e, value in zip(new, make(new), strict=True))
        return [memory[example.prompt.id] for example in examples]

    def block_attention(self, lessons: list[Lesson], texts: Texts, anchors: Tensor) -> Tensor:
        """Verifier attention to each bank token [B, A, N], averaged over the block behind each anchor."""
        result = torch.zeros(*anchors.shape, texts.bank.shape[1], device=anchors.device)
        for row, (lesson, bank) in enumerate(zip(lessons, texts.banks, strict=True)):
            attention = resample(lesson.attention, lesson.grids, bank.grids).float()
            total = torch.nn.functional.pad(attention.cumsum(0), (0, 0, 1, 0))
            start = anchors[row]
            end = (start + self.block_size).clamp_max(len(attention))
            mean = (total[end] - total[start]) / (end - start)[:, None]
            result[row, :, : attention.shape[1]] = mean
        return result

    def decode(self, batch: Batch) -> list[Generation]:
        """Answers a batch by speculative decoding with the drafter as it is."""
        options = self.options
        sampling = Sampling(temperature=options.validation_temperature)
        decoder = SpeculativeDecoder(
            self.verifier, self.drafter, self.block_size, options.max_new_tokens, sampling, options.seed
        )
        return decoder.generate([example.prompt for example in batch.examples])

    def validation_step(  # type: ignore[override]  # callbacks read the generations
        self, batch: Batch, batch_idx: int
    ) -> list[Generation]:
        """Decodes the batch for real and logs its accepted length."""
        generations = self.decode(batch)
        rounds = [item for generation in generations for item in generation.rounds]
        mean = sum(item.accepted for item in rounds) / max(len(rounds), 1)
        self.log("accept/length", mean, batch_size=max(len(rounds), 1), prog_bar=True, sync_dist=True)
        return generations

    def test_step(self, batch: Batch, batch_idx: int) -> list[Generation]:  # type: ignore[override]
        """The same as validation, on the test split."""
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch: Batch, batch_idx: int) -> list[Generation]:
        """Answers of the batch."""
        return self.decode(batch)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Logs the gradient norms of router and drafter apart."""
        for name, module in (("router", self.drafter.router), ("drafter", self.drafter.backbone)):
            gradients = [p.grad.norm() for p in module.parameters() if p.grad is not None]
            if gradients:
                self.log(f"gradient/{name}", torch.stack(gradients).norm())
