"""What the processes of one run must agree on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


def has_ranks() -> bool:
    """Whether this run has a process group."""
    return dist.is_available() and dist.is_initialized()


def check_ranks(facts: Mapping[str, str]) -> None:
    """Compares named values over all ranks; every rank must call it, with the same names.

    Gradients are averaged and shards are put together on the assumption that all ranks hold the same, and
    nothing fails where they do not: the run would only learn the wrong thing.

    Args:
        facts: Values by what they describe.

    Raises:
        ValueError: On every rank, naming the ranks that differ from rank 0 and in what.
    """
    if not has_ranks():
        return
    everyone: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, dict(facts))
    differing = {
        name: [str(rank) for rank, own in enumerate(everyone) if own[name] != value]
        for name, value in everyone[0].items()
    }
    found = [f"{name}: rank {', '.join(ranks)}" for name, ranks in differing.items() if ranks]
    if found:
        raise ValueError(
            f"Ranks differ from rank 0 ({'; '.join(found)}). All processes must start from the same files, "
            "options and seed; look for an old copy of the model, the checkpoint or the config on one of the "
            "nodes, and call `seed_everything` if you build the task in Python."
        )


def any_rank(flag: Tensor) -> bool:
    """Whether a flag is set on any rank; every rank must call it."""
    found = flag.int()
    if has_ranks():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def global_mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean of values [P, ...] over P and all ranks, though each has a number of its own.

    Args:
        values: Values of this rank.
        weight: What they weigh together, if they are weighted; by default their number.

    Returns:
        This rank's sum over the mean weight per rank. Averaged over the ranks, as its gradient is, that is
        the mean of the global batch, which one process would compute.
    """
    count = torch.tensor(float(len(values)), device=values.device) if weight is None else weight.clone()
    if has_ranks():
        dist.all_reduce(count)
        count = count / dist.get_world_size()
    return values.sum(0) / count.clamp_min(1e-9)
