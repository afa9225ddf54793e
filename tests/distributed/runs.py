"""Short trainings that one process and several processes run alike; also the program of each process."""

import importlib
import os
import sys
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch
from helpers import agreeing_drafter, fresh_backbone, picture, save_backbone
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from linear_head import LinearHead
from ranks import spawn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from callbacks import StopOnBadLoss
from data_modules import SyntheticDataModule
from data_modules.collate import Batch, Example
from tiger.backbones.base import Prompt
from tiger.drafting.heads.methods import HEADS
from tiger.drafting.lora import Lora
from tiger.drafting.saving import save_drafter
from tiger.training import AcceptanceAlignment, DraftHeadDistillation, KDWarmStart, acceptance_alignment
from tiger.training.sharding import full_state
from tiger.training.strategy import FSDP2Strategy

TASKS = {"kd": KDWarmStart, "align": AcceptanceAlignment}
ROOT = Path(__file__).resolve().parents[2]
ALONE, TOGETHER = ("auto",), ("ddp", "fsdp2")
GLOBAL_BATCH = 4


def save_pair(folder):
    """A random verifier, and a drafter that often agrees with it."""
    verifier = fresh_backbone("verifier", 0, 2)
    save_backbone(verifier, folder / "verifier")
    save_backbone(agreeing_drafter(verifier, 0.05).backbone, folder / "drafter")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3)


def adam(parameters):
    """A large epsilon: without it the first step is the gradient's sign, however close to zero it is."""
    return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-2)


# Hyper-parameters in a checkpoint name them, and FSDP2 loads no other code than this.
torch.serialization.add_safe_globals([sgd, adam])


def task(folder, kind, optimizer=sgd, **options):
    torch.manual_seed(0)  # the router starts from random weights
    defaults = {"num_anchors": 3, "block_size": 4, "num_routed": 6, "max_new_tokens": 12}
    pair = {"verifier": str(folder / "verifier"), "drafter": str(folder / "drafter")}
    return TASKS[kind](**(pair | defaults | options), optimizer=optimizer)


def data(folder, world, **options):
    """Answers of different lengths; five validation examples, which no two ranks can share evenly."""
    defaults = {"num_train": 12, "num_validation": 5, "num_test": 0, "responses": "dataset"}
    paths = {"verifier": str(folder / "verifier"), "cache_dir": str(folder / "cache")}
    return SyntheticDataModule(**(defaults | paths | options), batch_size=GLOBAL_BATCH // world)


def mixed_batches(world):
    """Two examples with a picture and two without; of two ranks, one sees no picture."""
    generator = torch.Generator().manual_seed(0)
    examples = [
        Example(
            Prompt(f"What is number {n}?", (picture(n),) if n < 2 else (), id=f"e{n}"),
            torch.randint(10, 200, (5 + n,), generator=generator),  # ids that every family has
            "x",
            "x",
        )
        for n in range(GLOBAL_BATCH)
    ]
    size = GLOBAL_BATCH // world
    batches = [Batch(examples[start : start + size]) for start in range(0, GLOBAL_BATCH, size)]
    return DataLoader(batches, batch_size=None)


def trainer(strategy, world, steps=1, **options):
    parts = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    run = {"accelerator": "cpu", "devices": world, "max_steps": steps, "num_sanity_val_steps": 0}
    strategy = FSDP2Strategy() if strategy == "fsdp2" else strategy
    return Trainer(**(dict.fromkeys(parts, False) | run | options), strategy=strategy)


def result(used, module):
    """Whole weights of the drafter and the metrics; every rank must call it."""
    weights = {name: value.clone() for name, value in full_state(module.drafter).items()}
    metrics = {name: float(value) for name, value in used.callback_metrics.items()}
    return {"weights": weights, "metrics": metrics}


class Watch(Callback):
    """Keeps the rounds that this rank decoded, and which weights were in shards when."""

    def __init__(self):
        self.accepted, self.sharded = [], {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.sharded["between steps"] = shards(pl_module)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.accepted += [item.accepted for generation in outputs for item in generation.rounds]
        self.sharded["in validation"] = shards(pl_module)


def shards(module):
    """Names of the weights of which this rank holds a part only."""
    weights = module.named_parameters()
    return {n for n, p in weights if isinstance(p, DTensor) and p.to_local().numel() < p.numel()}


def step(folder, strategies, world):
    """Validation, then a step and validation again, of each stage under each strategy."""
    found = {}
    for strategy in strategies:
        for kind in TASKS:
            # Shown all tokens at the image's place, the drafter agrees with the verifier now and then.
            module, before, watch = task(folder, kind, layout="inline", num_routed=999), Watch(), Watch()
            used = trainer(strategy, world, callbacks=[before])
            used.validate(module, data(folder, world), verbose=False)
            start = result(used, module) | {"accepted": before.accepted}
            module = task(folder, kind)
            used = trainer(strategy, world, callbacks=[watch], val_check_interval=1)
            used.fit(module, data(folder, world))
            found[strategy, kind] = result(used, module) | {
                "start": start,
                "accepted": watch.accepted,
                "sharded": watch.sharded,
            }
    return found


def mixed(folder, strategies, world):
    """A step of each stage with the vision tower in training, where a rank may have no picture."""
    found = {}
    for strategy in strategies:
        for kind in TASKS:
            module, used = task(folder, kind, train_vision=True), trainer(strategy, world)
            used.fit(module, mixed_batches(world))
            found[strategy, kind] = result(used, module)
    return found


def early(folder, strategies, world):
    """A step of alignment with early-stopped rollouts, which stop elsewhere on each rank."""
    options = {"reward": "accepted_prefix", "rollout_chunk": 1, "block_size": 6}
    found = {}
    for strategy in strategies:
        module, used, lengths = task(folder, "align", **options), trainer(strategy, world), []
        module._objective = noted(module._objective, lengths)
        used.fit(module, data(folder, world))
        found[strategy] = result(used, module) | {"lengths": lengths}
    return found


def at_once(folder, strategies, world):
    """The same where all blocks of the examples without a picture, so of one of two ranks, end at once.

    They fail the verifier's test, or draw an end token.
    """
    options = {"reward": "accepted_prefix", "rollout_chunk": 2, "block_size": 6}
    found, whole = {}, acceptance_alignment.roll_out
    for strategy, end in product(strategies, (False, True)):
        module, passes = task(folder, "align", **options), Passes()
        used = trainer(strategy, world, callbacks=[passes])
        acceptance_alignment.roll_out = stopped(whole, end)
        used.fit(module, mixed_batches(world))
        found[strategy, end] = result(used, module) | {"passes": passes.count}
    acceptance_alignment.roll_out = whole
    return found


def stopped(roll_out, end):
    """Rollouts whose blocks end at their first token where there is no picture."""

    def rolled(sampler, judge, uniform, *rest):
        row = [not entry.visual.any() for entry in sampler.texts.inputs]
        if end:
            sampler.uniform[row] = 0.0  # which draws token 0
        else:
            uniform[row] = 1.0
        rollouts = roll_out(sampler, judge, uniform, *rest)
        lengths = rollouts.counts.sum(-1)
        assert (lengths[row] == 1).all()
        assert any(row) == all(row) or (lengths > 2).any(), "no block goes on behind the first chunk"
        return rollouts

    return rolled


class Passes(Callback):
    """Counts the verifier's passes, and has answers end at token 0."""

    count = 0

    def on_train_start(self, trainer, pl_module):
        pl_module.verifier.eos_ids, run = (0,), pl_module.verifier.run

        def counted(*args, **options):
            self.count += 1
            return run(*args, **options)

        pl_module.verifier.run = counted


def noted(objective, lengths):
    """An objective that notes the longest block of each step on this rank."""

    def measured(rollouts, *rest):
        lengths.append(int(rollouts.counts.sum(-1).max()))
        return objective(rollouts, *rest)

    return measured


def save(folder, strategies, world, kinds=("align",), **options):
    """One step of some stages, saved and exported."""
    for strategy, kind in product(strategies, kinds):
        keep = ModelCheckpoint(folder / kind, strategy, every_n_train_steps=1)
        used = trainer(strategy, world, callbacks=[keep], enable_checkpointing=True)
        module = task(folder, kind, adam, **options)
        used.fit(module, data(folder, world))
        whole = module.whole_drafter()
        if used.is_global_zero:
            save_drafter(whole, folder / kind / strategy)


def resume(folder, strategies, world, kinds=("align",), **options):
    """The second step, from each checkpoint that there is, under each strategy."""
    found = {}
    for kind, strategy in product(kinds, strategies):
        for path in sorted((folder / kind).glob("*.ckpt")):
            module, used = task(folder, kind, adam, **options), trainer(strategy, world, steps=2)
            used.fit(module, data(folder, world), ckpt_path=path, weights_only=True)
            found[kind, path.stem, strategy] = result(used, module)
    return found


def save_and_resume(folder, strategies, world):
    """Both, in the same processes."""
    save(folder, strategies, world)
    return resume(folder, strategies, world)


def heads(folder, strategies, world):
    """A step of a draft head on answers of different lengths, at all places or a few, and validation."""
    losses = {"feature_weight": 1.0, "tv_weight": 2.0, "decay": 0.7, "noise": 0.1}
    options = losses | {"block_size": 3, "max_new_tokens": 12, "head": {"length": 3, "layers": [1]}}
    found = {}
    with patch.dict(HEADS, linear=LinearHead):
        for num_anchors in (None, 2):
            module = DraftHeadDistillation(
                str(folder / "verifier"), "linear", num_anchors=num_anchors, optimizer=sgd, **options
            )
            used = trainer("auto" if world == 1 else "ddp", world, val_check_interval=1)
            used.fit(module, data(folder, world))
            found[num_anchors] = result(used, module)
    return found


def adapters(folder, strategies, world):
    """The same with adapters in both stages; several processes also recompute layers."""
    save(folder, strategies, world, **adapted(world))
    return resume(folder, strategies, world, **adapted(world))


def adapted(world):
    return {"kinds": tuple(TASKS), "lora": Lora(rank=4), "gradient_checkpointing": world > 1}


def differ(folder, strategies, world):
    """The errors of runs whose ranks do not hold the same."""
    rank = int(os.environ["RANK"])
    found = {}
    for name in ("options", "drafter", "verifier", "data", "loss"):
        options = {"seed": rank} if name == "options" else {}
        if name == "verifier":
            options = {"verifier": str(folder / f"verifier{rank}")}
        module = task(folder, "kd", **options)
        if name == "drafter":
            torch.manual_seed(rank)
        if name == "loss" and rank == 1:
            module.training_step = spoilt(module.training_step)
        batches = data(folder, world, seed=rank if name == "data" else 0)
        try:
            trainer("ddp", world, callbacks=[StopOnBadLoss()]).fit(module, batches)
        except ValueError as error:
            found[name] = str(error)
    return found


def spoilt(training_step):
    return lambda *args: training_step(*args) * float("nan")


def launch(folder, scenario, world=2):
    """Runs a function of this file in several processes; returns each rank's result."""
    spawn(["-m", "runs", str(folder), scenario, str(world)], world, paths=[Path(__file__).parent])
    return [torch.load(folder / f"{scenario}{rank}.pt", weights_only=False) for rank in range(world)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    scenario = getattr(importlib.import_module("runs"), name)  # or checkpoints would name `__main__.adam`
    torch.save(scenario(place, TOGETHER, number), place / f"{name}{os.environ['RANK']}.pt")
