"""What all training shares: frozen verifier, drafter, anchors, and validation by real decoding."""

from __future__ import annotations

import json
import time
from abc import ABC
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torchmetrics import MeanMetric

from data_modules.collate import Batch, Example
from data_modules.loader import ResumableLoader
from tiger.backbones.base import Backbone
from tiger.backbones.loading import Quantization, check_pair, load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import Generation
from tiger.decoding.requests import request_seed
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.blocks import Texts, read_texts
from tiger.drafting.lora import Lora, add_adapters
from tiger.drafting.routed import Layout, Query, RoutedDrafter
from tiger.routing.selectors import SelectorName
from tiger.training import building
from tiger.training.checkpoints import (
    LORA_KEY,
    SECONDS_KEY,
    STAGE_KEY,
    VERIFIER_KEY,
    check_stage,
    check_verifier,
    check_weights,
    fingerprint,
)
from tiger.training.ranks import check_ranks
from tiger.training.sharding import full, full_state, gathered, shard
from tiger.training.teacher import Lesson, Teacher
from tiger.training.views import View, look, recalled


class DraftTask(LightningModule, ABC):
    """A stage of drafter training; a routed drafter learns unless a task builds another one.

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
        guidance_layers: Last verifier layers whose attention guides the router, 1 or more.
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
            memory, so that later epochs do not recompute them. Needs a frozen tower and whole weights.
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
        if guidance_layers < 1:
            raise ValueError(f"guidance_layers is {guidance_layers}; take 1 or more, or guidance_weight 0.")
        if remember and train_vision:
            raise ValueError("remember keeps visual banks, which train_vision changes; set one of them off.")
        self.save_hyperparameters()
        self.strict_loading = False
        self.optimizer, self.lora = optimizer, lora
        self.learnt: dict[str, Lesson] = {}
        self.views: dict[str, View] = {}
        self._drafter: Any = None
        self._accepted = MeanMetric()
        self._earlier_seconds, self._started = 0.0, time.monotonic()
        self._open = ExitStack()

    def prepare_data(self) -> None:
        """Checks that all models are there, before the verifier answers any prompt; see `building.check`."""
        building.check(self.options)

    def configure_model(self) -> None:
        """Loads the models, and shards them if the strategy gives a device mesh.

        Raises:
            ValueError: If the ranks hold different weights or options, an option does not go with shards, or
                the models were loaded when there was no mesh yet.
        """
        if self._drafter is not None:
            if self.device_mesh is not None and not isinstance(self, FSDPModule):
                raise ValueError(
                    "This task loaded its models before the trainer could shard them, so each rank would "
                    "learn alone. Give the trainer a new task, and do not call configure_model before."
                )
            return
        self.build()
        facts = {"verifier": self._verifier_mark, "drafter": fingerprint(self.drafter, exact=True)}
        check_ranks(facts | {"options": json.dumps(dict(self.options), default=lambda v: type(v).__name__)})
        if self.device_mesh is not None:
            self.shard_models()
        # DDP then neither sends frozen weights around at the start nor buffers, which are constants, at each
        # batch; ranks may have different numbers of validation batches.
        frozen = [n for n, p in self.named_parameters(remove_duplicate=False) if not p.requires_grad]
        buffers = [name for name, _ in self.named_buffers(remove_duplicate=False)]
        self._ddp_params_and_buffers_to_ignore = [*frozen, *buffers]

    @property
    def frozen(self) -> list[Backbone]:
        """The models that are only read."""
        return [self.verifier]

    def build(self) -> None:
        """Loads both models; the verifier stays frozen, in evaluation mode and out of checkpoints."""
        name, dtype, bits = map(self.options.get, ("verifier", "verifier_dtype", "verifier_quantization"))
        verifier = load_backbone(name, dtype, quantization=bits)
        self.verifier: Backbone = verifier.requires_grad_(False).eval()
        self._verifier_mark = fingerprint(verifier.model)
        self._drafter = self.build_drafter()

    def build_drafter(self) -> nn.Module:
        """The drafter that is going to learn, in training mode.

        Raises:
            ValueError: If it does not fit the verifier.
        """
        drafter = building.load(self.options)
        check_pair(self.verifier, drafter.backbone)
        return building.prepare(drafter, self.options, self.lora, self._verifier_mark)

    def shard_models(self) -> None:
        """Shards the models over the ranks of the device mesh.

        Raises:
            ValueError: If an option does not go with shards.
        """
        if self.options.remember:
            raise ValueError(
                "remember skips passes on the ranks that know an example, and shards need every rank in "
                "every pass. Set remember false, or use the ddp strategy."
            )
        assert self.device_mesh is not None
        mesh = self.device_mesh["data_parallel"]
        shard(self, self.drafter.backbone, self.frozen, ("training_step", "decode"), mesh)

    @cached_property
    def teacher(self) -> Teacher:
        """The verifier as a teacher of routed drafters."""
        layers = self.options.guidance_layers if self.is_guided else 0
        return Teacher(self.verifier, layers, self.options.guidance_power)

    def whole_drafter(self) -> RoutedDrafter | None:
        """The drafter without shards, to be saved; every rank must call it.

        Returns:
            The drafter; where it is sharded, a copy on rank zero and None on the others.
        """
        if not isinstance(self, FSDPModule):
            return self.drafter
        weights = full_state(self.drafter)
        if self.global_rank:
            return None
        drafter = building.load(self.options)
        if self.lora is not None:
            add_adapters(drafter, self.lora)
        drafter.load_state_dict(weights)
        return drafter

    @property
    def options(self) -> Any:
        """The constructor's arguments."""
        return self.hparams

    @property
    def drafter(self) -> RoutedDrafter:
        """The drafter in training."""
        assert self._drafter is not None, "configure_model has not run"
        drafter: RoutedDrafter = self._drafter
        return drafter

    @property
    def parts(self) -> dict[str, nn.Module]:
        """What learns, by the names that gradient norms are logged by."""
        return {"router": self.drafter.router, "drafter": self.drafter.backbone}

    @property
    def is_guided(self) -> bool:
        """Whether the verifier's attention guides the router."""
        return bool(self.options.guidance_weight) and self.drafter.selector == "routed"

    @property
    def stage(self) -> str:
        """Name of the stage; FSDP2 puts its own in front of the class's."""
        return type(self).__name__.removeprefix("FSDP")

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
        trained = {n for n, p in self.named_parameters(remove_duplicate=False) if p.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Notes the stage, which verifier the drafter learns from, and its adapters."""
        checkpoint[STAGE_KEY] = self.stage
        checkpoint[VERIFIER_KEY] = self._verifier_mark
        checkpoint[LORA_KEY] = self.lora and asdict(self.lora)
        checkpoint[SECONDS_KEY] = self.training_seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint of another stage or verifier.

        Raises:
            ValueError: If it does not continue with this stage, or the drafter learnt from another verifier.
        """
        check_stage(checkpoint, self.stage)
        check_verifier(checkpoint, self._verifier_mark)
        self._earlier_seconds = checkpoint.get(SECONDS_KEY, 0.0)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads a checkpoint that must hold every weight that is trained.

        Raises:
            ValueError: If weights are missing, unknown or of another shape.
        """
        check_weights(super().state_dict(), state_dict, self.state_dict().keys())
        return super().load_state_dict(state_dict, strict=False, assign=assign)

    def parameter_groups(self) -> list[Any]:
        """The trainable parameters, as an optimizer takes them."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def configure_optimizers(self) -> Any:
        """The optimizer over trainable parameters, with warm-up and decay per optimizer step."""
        optimizer = self.optimizer(self.parameter_groups())
        warmup, decay = self.options.warmup_steps, self.options.decay_steps

        def factor(step: int) -> float:
            rise = min(1.0, (step + 1) / max(warmup, 1))
            return rise * (max(0.0, 1.0 - step / decay) if decay else 1.0)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def generators(self, examples: list[Example], batch_index: int) -> list[torch.Generator]:
        """Randomness of one training step, one generator per example.

        Each is a function of seed, epoch, batch index and the example's name only: an example draws the same
        whichever rank has it, so N ranks with b examples do what one does with N * b.
        """
        step = f"{self.current_epoch}/{batch_index}"
        names = [e.prompt.id or f"rank {self.global_rank}, row {row}" for row, e in enumerate(examples)]
        seeds = [request_seed(self.options.seed, f"{step}/{name}") for name in names]
        return [torch.Generator(self.device).manual_seed(seed) for seed in seeds]

    def anchors(self, examples: list[Example], generators: list[torch.Generator]) -> Tensor:
        """Draws roots [B, A] in each answer, one from each of A equal parts, leaving a token to draft."""
        last = torch.tensor([max(len(example.response) - 1, 1) for example in examples], device=self.device)
        count, device = self.options.num_anchors, self.device
        uniform = torch.stack([torch.rand(count, generator=g, device=device) for g in generators])
        parts = (torch.arange(count, device=device) + uniform) / count
        return (parts * last[:, None]).long()

    def texts(self, examples: list[Example]) -> Texts:
        """Prompts and answers as the drafter reads them; visual banks are remembered if asked for."""
        answers = [example.response.to(self.device) for example in examples]
        train_vision, memory = self.options.train_vision, self.views if self.options.remember else None
        views = recalled(memory, examples, lambda new: look(self.drafter, new, train_vision))
        return read_texts(self.drafter, [view[0] for view in views], [view[1] for view in views], answers)

    def lessons(self, examples: list[Example]) -> list[Lesson]:
        """What the verifier teaches along the answers, remembered if asked for."""

        def learn(new: list[Example]) -> list[Lesson]:
            return self.teacher.read([e.prompt for e in new], [e.response.to(self.device) for e in new])

        return recalled(self.learnt if self.options.remember else None, examples, learn)

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
        if rounds:
            self._accepted.update(torch.tensor([float(item.accepted) for item in rounds], device=self.device))
        self.log("accept/length", self._accepted, batch_size=len(batch), prog_bar=True)
        return generations

    def test_step(self, batch: Batch, batch_idx: int) -> list[Generation]:  # type: ignore[override]
        """The same as validation, on the test split."""
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch: Batch, batch_idx: int) -> list[Generation]:
        """Answers of the batch."""
        return self.decode(batch)

    @property
    def training_seconds(self) -> float:
        """Wall-clock time since training started, validation included, and that of interrupted runs."""
        return self._earlier_seconds + time.monotonic() - self._started

    def on_train_start(self) -> None:
        """Checks that all ranks take their share of the same data, from the same place on."""
        self._started = time.monotonic()
        loader = self.trainer.train_dataloader
        if isinstance(loader, ResumableLoader):
            check_ranks({"training data": json.dumps(loader.state_dict(), sort_keys=True)})

    def on_validation_epoch_start(self) -> None:
        """Gathers sharded weights: ranks decode different numbers of rounds and batches."""
        self._open.enter_context(gathered([self, *self.verifier.modules(), *self.drafter.modules()]))

    def on_validation_epoch_end(self) -> None:
        """Shards the weights again."""
        self._open.close()

    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Logs the gradient norm of each part."""
        for name, module in self.parts.items():
            gradients = [full(p.grad.norm()) for p in module.parameters() if p.grad is not None]
            if gradients:
                self.log(f"gradient/{name}", torch.stack(gradients).norm())
