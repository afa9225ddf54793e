"""The two training stages of one tiny model: dense pre-training of the tower, then language modelling."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration

from data_modules.synthetic.world import LABELS, Sample
from tiger.pairs.recipe.packing import GRID, NUM_VISUAL, PackedBatch, Packer, batches, stack_cells

LANGUAGE_WEIGHTS = {"count": 2.0, "scene": 1.5, "document": 1.3, "science": 0.5}
TOWER_WEIGHTS = {"sign": 5.0, "document": 1.5}  # reading characters takes a tower the longest


class DenseHead(nn.Module):
    """Linear read-outs of the cell labels from visual tokens; thrown away after training."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({k: nn.Linear(hidden_size, len(v) + 1) for k, v in LABELS.items()})

    def forward(self, tokens: Tensor, cells: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy over all cells and the accuracy on labelled cells.

        Args:
            tokens: Visual tokens [B, 64, D].
            cells: Class ids [B, 64] per label, -1 for none.
        """
        loss, accuracy = tokens.new_zeros(()), {}
        for label, head in self.heads.items():
            target = cells[label] + 1
            logits = head(tokens).float()
            weight = torch.ones(logits.shape[-1])
            weight[0] = 0.1
            loss = loss + F.cross_entropy(logits.flatten(0, 1), target.flatten(), weight=weight)
            hit = (logits.argmax(-1) == target)[target > 0]
            accuracy[label] = hit.float().mean().item() if len(hit) else float("nan")
        return loss, accuracy


def encode(
    model: Qwen3VLForConditionalGeneration, pixels: Tensor, num_images: int
) -> tuple[Tensor, list[Tensor]]:
    """Visual tokens [B, 64, D] and deepstack rows, each [B * 64, D]."""
    side = GRID * 2
    grid = torch.tensor([[1, side, side]]).expand(num_images, 3)
    output = model.model.visual(pixels, grid_thw=grid)
    return output.pooler_output.view(num_images, NUM_VISUAL, -1), list(output.deepstack_features or [])


def optimizers(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside blocks, AdamW for embeddings, norms and heads."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and ("layers." in name or "blocks." in name)
        (matrices if inner else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]


def learning_rate(step: int, steps: int, warmup: int = 100, decay: float = 0.5) -> float:
    """Share of the peak rate: linear warm-up, constant, linear decay over the last `decay` of the run."""
    return min(1.0, (step + 1) / warmup, max(0.0, (steps - step) / (decay * steps)))


def world() -> tuple[int, int]:
    """Rank and number of processes of the run, which share each step under `torchrun`."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def average_gradients(module: nn.Module, count: int) -> None:
    """Averages the gradients over the processes of the run."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, value in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(value.view_as(gradient) / count)


class Trainer:
    """Runs one resumable stage.

    Args:
        module: The trained modules.
        loss: Maps a list of samples to a loss and figures to print.
        folder: Receives `state.pt`, replaced atomically.
        lr: Peak learning rate.
        steps: Optimisation steps of the whole stage.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[list[Sample]], tuple[Tensor, dict[str, float]]],
        folder: Path,
        lr: float,
        steps: int,
    ) -> None:
        self.module, self.loss, self.folder, self.lr, self.steps = module, loss, folder, lr, steps
        self.optimizers = optimizers(module, lr)
        self.step = 0
        self.seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if (state := folder / "state.pt").exists():
            saved = torch.load(state, weights_only=True)
            module.load_state_dict(saved["module"])
            for optimizer, value in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(value)
            self.step, self.seconds = saved["step"], saved["seconds"]

    def save(self) -> None:
        """Writes the state under a temporary name, then renames it."""
        state = {
            "module": self.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, self.folder / "state.tmp")
        os.replace(self.folder / "state.tmp", self.folder / "state.pt")

    def run(
        self, batch_size: int, seed: int, weights: dict[str, float] | None = None, log_every: int = 20
    ) -> None:
        """Trains until `steps`; prints a line every `log_every` steps and saves every 100.

        Each process of a run reads its own stream, so more processes mean larger steps.
        """
        rank, count = world()
        stream = batches(seed + rank * 5_000_000 + self.step * batch_size, batch_size, weights)
        started = time.time() - self.seconds
        while self.step < self.steps:
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.lr * learning_rate(self.step, self.steps)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss, figures = self.loss(next(stream))
            loss.backward()
            if count > 1:
                average_gradients(self.module, count)
            nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            self.step += 1
            self.seconds = time.time() - started
            if rank > 0:
                continue
            if self.step % log_every == 0 or self.step == self.steps:
                text = " ".join(f"{k} {v:.3f}" for k, v in figures.items())
                print(f"{self.folder.name} {self.step}/{self.steps} {self.seconds:.0f}s {text}", flush=True)
            if self.step % 100 == 0 or self.step == self.steps:
                self.save()


def train_tower(
    model: Qwen3VLForConditionalGeneration,
    head: DenseHead,
    packer: Packer,
    folder: Path,
    steps: int,
    seed: int,
) -> None:
    """Stage 1: the vision tower learns to name what lies in every cell."""

    def loss(samples: list[Sample]) -> tuple[Tensor, dict[str, float]]:
        tokens, _ = encode(model, packer.pixels(samples), len(samples))
        value, accuracy = head(tokens, stack_cells(samples))
        return value, {"loss": value.item(), **accuracy}

    Trainer(nn.ModuleList([model.model.visual, head]), loss, folder, lr=3e-3, steps=steps).run(
        32, seed, TOWER_WEIGHTS
    )


def language_loss(
    model: Qwen3VLForConditionalGeneration, batch: PackedBatch, tokens: Tensor, deepstack: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean next-token loss over all answers, and the share of right argmaxes.

    Args:
        model: The model in training.
        batch: A packed batch.
        tokens: Visual tokens [B, 64, D].
        deepstack: Deepstack rows, each [B * 64, D].
    """
    language = model.model.language_model
    visual = batch.ids == model.config.image_token_id
    embeddings = language.embed_tokens(batch.ids)
    embeddings = embeddings.masked_scatter(visual[..., None], tokens.to(embeddings.dtype))
    bias = torch.zeros(batch.attend.shape).masked_fill(~batch.attend, torch.finfo(torch.float32).min)
    hidden = language(
        inputs_embeds=embeddings,
        position_ids=batch.position_ids,
        attention_mask=bias,
        visual_pos_masks=visual,
        deepstack_visual_embeds=deepstack or None,
        use_cache=False,
    ).last_hidden_state
    answer = batch.targets != -100
    logits = model.lm_head(hidden[answer]).float()
    target = batch.targets[answer]
    return F.cross_entropy(logits, target), (logits.argmax(-1) == target).float().mean()


def train_language(
    model: Qwen3VLForConditionalGeneration,
    head: DenseHead,
    packer: Packer,
    folder: Path,
    steps: int,
    seed: int,
    compiled: bool = True,
) -> None:
    """Stage 2: the whole model learns to answer; the dense labels stay as a small auxiliary loss."""
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    if compiled:
        for layer in model.model.language_model.layers:
            layer.compile(dynamic=False)

    def loss(samples: list[Sample]) -> tuple[Tensor, dict[str, float]]:
        batch = packer.pack(samples)
        tokens, deepstack = encode(model, batch.pixel_values, len(samples))
        dense, _ = head(tokens, batch.cells)
        value, accuracy = language_loss(model, batch, tokens, deepstack)
        return value + 0.1 * dense, {"loss": value.item(), "accuracy": accuracy.item(), "dense": dense.item()}

    Trainer(nn.ModuleList([model, head]), loss, folder, lr=2e-3, steps=steps).run(16, seed, LANGUAGE_WEIGHTS)
