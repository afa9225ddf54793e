"""Draft steps as one compiled function whose shapes never change: CUDA graphs on a GPU, C++ on a CPU.

A plain step reads the beginning of the cache, which grows with every token. A compiled one reads the whole
cache behind a mask, and writes where a tensor says, so that only the contents of its inputs change.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from tiger.backbones.base import Backbone
from tiger.backbones.cache import BlockCache
from tiger.drafting.reader import Reader

ROOM = 256  # caches are made in multiples of so many tokens, so that most requests share one compiled step


class CompiledSteps:
    """Reads drafted tokens one by one with a compiled pass of the drafter's language model.

    The first step of each batch size, and of each size of the cache, takes as long as it is compiled.

    Args:
        backbone: The drafter's backbone, on the device where it is going to run.

    Raises:
        ValueError: If what torch compiles with is missing.
    """

    def __init__(self, backbone: Backbone) -> None:
        check_compiler(backbone.device)
        self.backbone = backbone
        on_gpu = backbone.device.type == "cuda"
        self._step = torch.compile(self._read, mode="reduce-overhead" if on_gpu else "default")

    def chain(self, reader: Reader, count: int) -> Callable[[Tensor], Tensor]:
        """As `Reader.chain`: a function from tokens [B] to their hidden states [B, D], each counted in."""
        cache, device = reader.cache, self.backbone.device
        cache.require(count)
        rows = torch.arange(cache.num_rows, device=device)
        slots = torch.tensor(cache.lengths, device=device)
        positions = torch.tensor(reader.next_positions, device=device)
        visible = torch.arange(cache.capacity, device=device) < slots[:, None]
        ones, whole = [1] * cache.num_rows, WholeCache(cache, rows, slots)

        def read(tokens: Tensor) -> Tensor:
            visible[rows, slots] = True
            hidden: Tensor = self._step(tokens, positions, visible, whole)
            slots.add_(1)
            positions.add_(1)
            reader.commit(ones)
            return hidden

        return read

    def _read(self, tokens: Tensor, positions: Tensor, visible: Tensor, cache: WholeCache) -> Tensor:
        """Hidden states [B, D] of tokens [B] at positions [B] that see the visible slots [B, capacity]."""
        backbone = self.backbone
        axes = positions[:, None].expand(backbone.num_axes, -1, -1)
        return backbone.run(backbone.embed(tokens[:, None]), axes, visible[:, None, None], cache)[:, 0]


class WholeCache(Cache):
    """The slabs of a block cache for single tokens: written at given slots, and shown to their end.

    Args:
        cache: The block cache, which has been read into.
        rows: Row of each request [B].
        slots: Slot that its next token is written to [B]; to be moved by the caller.
    """

    def __init__(self, cache: BlockCache, rows: Tensor, slots: Tensor) -> None:
        super().__init__(
            layers=[_WholeLayer(layer.keys, layer.values, rows, slots) for layer in cache.layers]
        )


class _WholeLayer(DynamicLayer):
    """One layer of a `WholeCache`."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, slots: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.rows, self.slots = keys, values, rows, slots
        self.is_initialized = True
        if keys.is_cuda:  # or a graph would copy both in every step
            for slab in (keys, values):
                torch._dynamo.mark_static_address(slab, guard=False)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [B, H, 1, head_dim] at the slots; returns the whole slabs [B, H, capacity, head_dim]."""
        self.keys[self.rows, :, self.slots] = key_states[:, :, 0]
        self.values[self.rows, :, self.slots] = value_states[:, :, 0]
        return self.keys, self.values


def check_compiler(device: torch.device) -> None:
    """Checks that torch finds what it compiles with.

    Args:
        device: Where the compiled function is going to run.

    Raises:
        ValueError: If there is no Triton for a GPU, or no C++ compiler for a CPU.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ValueError(
                "compile_drafter needs Triton, which is not installed. Run `pip install triton`, or set "
                "compile_drafter false."
            )
    elif shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        raise ValueError(
            f"compile_drafter needs a C++ compiler, and there is no {compiler}. Install g++ (package g++ or "
            "build-essential), name another one in the variable CXX, or set compile_drafter false."
        )
