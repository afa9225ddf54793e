"""The strategy behind `configs/trainer/fsdp2.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from tiger.training.checkpoints import check_weights

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class FSDP2Strategy(ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy` with all processes in one data-parallel group.

    Checkpoints are single files of the same format as those of DDP and of one device, so a run may be resumed
    under another strategy. (Lightning numbers optimizer states by all weights of the model, frozen ones
    included, so its own files fit no other strategy here.)

    Args:
        kwargs: `process_group_backend` and `timeout` of `ModelParallelStrategy`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **kwargs)

    def setup_environment(self) -> None:
        """Fits the data-parallel group to the number of processes before Lightning builds the mesh."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The whole state on rank zero, numbered by the optimizer's own parameters as torch does."""
        optimizer = getattr(optimizer, "_optimizer", optimizer)
        assert self.model is not None
        state = get_optimizer_state_dict(self.model, optimizer, options=FULL)
        if self.global_rank:
            return {}
        return rekeyed(state, {name: index for index, name in enumerate(self._names(optimizer))})

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads weights and optimizer states into the shards; returns the rest of the checkpoint.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the checkpoint belongs to another pair.
        """
        path = Path(self.broadcast(checkpoint_path))
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no checkpoint file {path}; it is one file under every strategy."
            )
        assert self.model is not None
        checkpoint: dict[str, Any] = torch.load(
            path, mmap=True, map_location="cpu", weights_only=weights_only
        )
        weights = checkpoint.pop("state_dict")
        own = nn.Module.state_dict(self.model)
        check_weights(own, weights, self.model.state_dict().keys())
        options = StateDictOptions(full_state_dict=True, strict=False)
        set_model_state_dict(self.model, weights, options=options)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=False):
            named = rekeyed(state, dict(enumerate(self._names(optimizer))))
            set_optimizer_state_dict(self.model, optimizer, named, options=options)
        return checkpoint

    def _names(self, optimizer: Optimizer) -> list[str]:
        """Names of the optimizer's parameters, in its order."""
        assert self.model is not None
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def rekeyed(state: Mapping[str, Any], keys: Mapping[Any, Any]) -> dict[str, Any]:
    """An optimizer's state dict whose parameters go by other names or numbers."""
    return {
        "state": {keys[key]: value for key, value in state["state"].items()},
        "param_groups": [
            group | {"params": [keys[key] for key in group["params"]]} for group in state["param_groups"]
        ],
    }
