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
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from data_modules.synthetic.world import LABELS, Sample
from tiger.pairs.recipe.packing import (
    GRID,
    NUM_VISUAL,
    PackedBatch,
    Packer,
    batches,
    label_tokens,
    stack_cells,
)

LANGUAGE_WEIGHTS = {"count": 2.0, "document": 2.0, "chart": 1.3, "sign": 1.1, "science": 0.5}
LOOKUP_LAYER = 0.3  # depth of the layer that learns to look up what a word names
TOWER_WEIGHTS = {"sign": 5.0, "document": 1.5}  # reading characters takes a tower the longest


class DenseHead(nn.Module):
    """Reads the cell labels from visual tokens; thrown away after training.

    The score of a label is the product of the visual token with the embedding of the label's word, so a cell
    with a red star lies near "red" and "star", and a question that names them matches like with like.

    Args:
        tokenizer: Gives the word tokens of the labels.
        hidden_size: Width of the visual tokens, D.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, hidden_size: int) -> None:
        super().__init__()
        self.words = label_tokens(tokenizer)
        self.absent = nn.ModuleDict({k: nn.Linear(hidden_size, 1) for k in LABELS})
        self.bias = nn.ParameterDict({k: nn.Parameter(torch.zeros(len(v))) for k, v in LABELS.items()})

    def forward(
        self, tokens: Tensor, cells: dict[str, Tensor], embeddings: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy over all cells and the accuracy on labelled cells.

        Args:
            tokens: Visual tokens [B, 64, D].
            cells: Class ids [B, 64] per label, -1 for none.
            embeddings: Token embeddings of the language model [V, D].
        """
        loss, accuracy = tokens.new_zeros(()), {}
        for label, words in self.words.items():
            target = cells[label] + 1
            scores = F.linear(tokens, embeddings[words]) + self.bias[label]
            logits = torch.cat([self.absent[label](tokens), scores], dim=-1).float()
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
        value, accuracy = head(tokens, stack_cells(samples), model.get_input_embeddings().weight)
        return value, {"loss": value.item(), **accuracy}

    trained = nn.ModuleList([model.model.visual, model.get_input_embeddings(), head])
    Trainer(trained, loss, folder, lr=3e-3, steps=steps).run(32, seed, TOWER_WEIGHTS)


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


def lookup_loss(attention: Tensor, batch: PackedBatch, image_start: int) -> Tensor:
    """-log of the attention that half of the heads pay to the cells that a token names.

    Looking up what a question names takes two things that are useless without each other, finding the cell
    and reading it. This teaches the first, so that the language loss can teach the second from the start.

    Args:
        attention: Attention of one layer [B, H, T, T].
        batch: The packed batch.
        image_start: Index of the first visual token.
    """
    heads = attention[:, : attention.shape[1] // 2, :, image_start : image_start + NUM_VISUAL].float()
    paid = (heads.mean(1) * batch.named).sum(-1)
    return -paid[batch.named.any(-1)].clamp_min(1e-6).log().mean()


def train_language(
    model: Qwen3VLForConditionalGeneration,
    head: DenseHead,
    packer: Packer,
    folder: Path,
    steps: int,
    seed: int,
    compiled: bool = True,
) -> None:
    """Stage 2: the whole model learns to answer; dense labels and look-ups are small auxiliary losses."""
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    layers, attention = model.model.language_model.layers, []
    chosen = layers[int(LOOKUP_LAYER * len(layers))]
    chosen.self_attn.register_forward_hook(lambda module, inputs, output: attention.append(output[1]))
    if compiled:
        for layer in layers:
            if layer is not chosen:
                layer.compile(dynamic=False)

    def loss(samples: list[Sample]) -> tuple[Tensor, dict[str, float]]:
        batch = packer.pack(samples)
        tokens, deepstack = encode(model, batch.pixel_values, len(samples))
        dense, _ = head(tokens, batch.cells, model.get_input_embeddings().weight)
        value, accuracy = language_loss(model, batch, tokens, deepstack)
        lookup = lookup_loss(attention.pop(), batch, packer.image_start)
        figures = {"loss": value, "accuracy": accuracy, "dense": dense, "lookup": lookup}
        return value + 0.2 * dense + 0.1 * lookup, {k: v.item() for k, v in figures.items()}

    Trainer(nn.ModuleList([model, head]), loss, folder, lr=2e-3, steps=steps).run(16, seed, LANGUAGE_WEIGHTS)
