"""FSDP2: decoder layers live in shards, and are whole only while they run.

The collectives of FSDP must be the same on every rank, but our passes depend on the data: a batch without
images runs no vision tower, and answers of different lengths give the head different numbers of chunks. So

- only decoder layers gather at each call; every rank calls them equally often in a training step, whatever
  its blocks are: rollouts that stop early go on on all ranks while one of them has to,
- the drafter's other trainable weights (embeddings, head, norms, router) are gathered when a step is entered,
  and their gradients reduced once behind its backward pass: the task itself is their FSDP module, and its
  steps are what FSDP takes for `forward`, since nothing ever calls the forward of the models,
- other frozen weights are whole on every rank,
- decoding, whose rounds differ from rank to rank, happens with all weights gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from tiger.backbones.base import Backbone


def shard(
    task: nn.Module, drafter: Backbone, frozen: Sequence[Backbone], entries: Sequence[str], mesh: DeviceMesh
) -> None:
    """Shards a task's models over the ranks of a mesh.

    Args:
        task: Holds the models; its trainable weights outside of decoder layers form one group.
        drafter: The model in training.
        frozen: The other models.
        entries: Methods of the task that use the models.
        mesh: One-dimensional mesh.

    Raises:
        ValueError: If a model is quantized.
    """
    layers = [layer for backbone in (drafter, *frozen) for layer in backbone.model.get_decoder().layers]
    if not all(p.is_floating_point() for layer in layers for p in layer.parameters()):
        raise ValueError(
            "A quantized model cannot be sharded. Load it with a floating-point dtype, or use the ddp "
            "strategy, where each GPU holds a whole copy."
        )
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    whole = {p for p in task.parameters() if not p.requires_grad}
    fully_shard(task, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
    # By default FSDP prefetches what ran before, which after a validation is not the same on every rank.
    for below, above in pairwise([task, *drafter.model.get_decoder().layers, task]):
        above.set_modules_to_backward_prefetch([below])
    for name in entries:
        register_fsdp_forward_method(task, name)


@contextmanager
def gathered(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keeps the sharded ones among some modules whole, so that their passes need no other rank.

    Every rank must enter it. Modules that are not sharded are left alone.

    Args:
        modules: The modules; their submodules are not visited.
    """
    parts = [module for module in modules if isinstance(module, FSDPModule)]
    with torch.inference_mode(False):  # or the gathered weights could not be trained later
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def full(value: Tensor) -> Tensor:
    """A tensor without shards; every rank must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """State dict on the CPU without shards, tied weights still tied; every rank must call it."""
    done: dict[int, Tensor] = {}
    state = module.state_dict(keep_vars=True)
    for value in state.values():
        if id(value) not in done:
            done[id(value)] = full(value.detach()).cpu()
    return {name: done[id(value)] for name, value in state.items()}
