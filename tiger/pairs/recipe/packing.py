"""Batches for the recipe: one image, several turns that do not see one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3VLProcessor

from data_modules.synthetic.world import CELL, IMAGE_SIZE, KINDS, LABELS, Sample, cell_labels, generate

GRID = IMAGE_SIZE // CELL
NUM_VISUAL = GRID * GRID


@dataclass
class PackedBatch:
    """Token rows `[prefix with image, turn 1, turn 2, ...]` of B images.

    Attributes:
        ids: Token ids [B, T].
        targets: Next-token ids [B, T], -100 outside answers.
        position_ids: [3, B, T]; each turn starts where the image ends.
        attend: Bool mask [B, 1, T, T]; a turn sees the prefix and itself.
        pixel_values: Patches of all images [B * 256, C].
        cells: Dense labels, one [B, 64] of class ids (-1: none) per key of `LABELS`.
        named: Cells that each text token names [B, T, 64], bool.
    """

    ids: Tensor
    targets: Tensor
    position_ids: Tensor
    attend: Tensor
    pixel_values: Tensor
    cells: dict[str, Tensor]
    named: Tensor


def label_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, list[int]]:
    """Token of each label's word as it stands in a sentence; characters stand inside codes."""
    return {
        label: [tokenizer(word if label == "char" else f" {word}")["input_ids"][0] for word in words]
        for label, words in LABELS.items()
    }


def prefix_positions(start: int) -> Tensor:
    """Three-axis positions [3, 64] of an image whose first token stands at `start`."""
    rows, columns = np.divmod(np.arange(NUM_VISUAL), GRID)
    return torch.from_numpy(np.stack([np.zeros(NUM_VISUAL, dtype=np.int64), rows, columns]) + start)


class Packer:
    """Turns samples into `PackedBatch`es of fixed length, so that compiled layers never recompile."""

    def __init__(self, processor: Qwen3VLProcessor, length: int = 288) -> None:
        self.processor = processor
        self.tokenizer: PreTrainedTokenizerFast = processor.tokenizer
        self.length = length
        self.names = name_tokens(self.tokenizer)
        image = "<|image_pad|>" * NUM_VISUAL
        head = f"<|im_start|>user\n<|vision_start|>{image}<|vision_end|>"
        self.prefix: list[int] = self.tokenizer(head)["input_ids"]
        self.image_start = self.prefix.index(self.tokenizer.convert_tokens_to_ids("<|image_pad|>"))
        text_before, text_after = self.image_start, len(self.prefix) - self.image_start - NUM_VISUAL
        self.turn_start = text_before + GRID + text_after
        self.prefix_positions = torch.cat(
            [
                torch.arange(text_before).expand(3, -1),
                prefix_positions(text_before),
                torch.arange(text_before + GRID, self.turn_start).expand(3, -1),
            ],
            dim=1,
        )

    def pack(self, samples: list[Sample]) -> PackedBatch:
        """Packs samples; turns that do not fit into the length are left out."""
        size, length = len(samples), self.length
        ids = torch.full((size, length), self.tokenizer.pad_token_id)
        targets = torch.full((size, length), -100)
        position_ids = torch.zeros(3, size, length, dtype=torch.long)
        owner = torch.full((size, length), -1)
        cells = stack_cells(samples)
        named = torch.zeros(size, length, NUM_VISUAL, dtype=torch.bool)
        for row, sample in enumerate(samples):
            end = len(self.prefix)
            ids[row, :end], owner[row, :end] = torch.tensor(self.prefix), 0
            position_ids[:, row, :end] = self.prefix_positions
            for index, turn in enumerate(sample.turns, start=1):
                question = self.tokenizer(f"{turn.question}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
                answer = self.tokenizer(f"{turn.answer}<|im_end|>")["input_ids"]
                stop = end + len(question) + len(answer)
                if stop > length:
                    break
                ids[row, end:stop] = torch.tensor(question + answer)
                targets[row, end + len(question) - 1 : stop - 1] = torch.tensor(answer)
                position_ids[:, row, end:stop] = torch.arange(self.turn_start, self.turn_start + stop - end)
                owner[row, end:stop] = index
                named[row, end:stop] = self.name(question + answer, {k: v[row] for k, v in cells.items()})
                end = stop
        seen = (owner[:, None, :] == 0) | (owner[:, None, :] == owner[:, :, None])
        attend = (seen & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
        return PackedBatch(ids, targets, position_ids, attend, self.pixels(samples), cells, named)

    def name(self, tokens: list[int], cells: dict[str, Tensor]) -> Tensor:
        """Cells [T, 64] that each token names; a colour before a shape narrows the shape's cells down."""
        rows = torch.zeros(len(tokens), NUM_VISUAL, dtype=torch.bool)
        for index, token in enumerate(tokens):
            for label, value in self.names.get(token, ()):
                rows[index] |= cells[label] == value
            if index and (both := rows[index] & rows[index - 1]).any():
                rows[index] = both
        return rows

    def pixels(self, samples: list[Sample]) -> Tensor:
        """Patches [B * 256, C] of the samples' images, by the pair's own image processor."""
        images = [Image.fromarray(sample.image) for sample in samples]
        values: Tensor = self.processor.image_processor(images, return_tensors="pt")["pixel_values"]
        return values


def name_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[int, list[tuple[str, int]]]:
    """Labels that a token names: shapes (plurals too), colours, characters and words."""
    names: dict[int, list[tuple[str, int]]] = {}
    for label in ("shape", "colour", "char", "word"):
        for value, word in enumerate(LABELS[label]):
            forms = (word,) if label == "char" else (word, f" {word}", f" {word}s", f" {word}es")
            for ids in tokenizer(list(forms))["input_ids"]:
                if len(ids) == 1:
                    names.setdefault(ids[0], []).append((label, value))
    return names


def stack_cells(samples: list[Sample]) -> dict[str, Tensor]:
    """Dense labels [B, 64] per label name."""
    cells = [cell_labels(sample) for sample in samples]
    return {k: torch.from_numpy(np.stack([c[k].reshape(-1) for c in cells])).long() for k in LABELS}


def batches(start: int, size: int, weights: dict[str, float] | None = None) -> Iterator[list[Sample]]:
    """Endless batches of training samples, from seed `start` on; every sample is used once.

    Args:
        start: First seed.
        size: Samples per batch.
        weights: Relative share of each kind, 1 where missing.
    """
    share: Any = np.array([(weights or {}).get(kind, 1.0) for kind in KINDS])
    seed = start
    while True:
        kinds = np.random.default_rng(seed).choice(len(KINDS), size, p=share / share.sum())
        yield [generate(seed + i, KINDS[kind]) for i, kind in enumerate(kinds)]
        seed += size
