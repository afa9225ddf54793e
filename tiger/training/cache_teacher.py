"""The verb `data cache-teacher`: runs the verifier over the training data once and keeps its lessons.

For KD these are its likeliest tokens, for draft heads its hidden states.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from filelock import FileLock
from lightning.pytorch.cli import LightningArgumentParser
from rich.progress import track
from torch import Tensor

from data_modules.loader import ResumableLoader
from tiger.training.draft_head_distillation import DraftHeadDistillation
from tiger.training.kd_warm_start import KDWarmStart
from tiger.training.lightning_cli import TigerCLI
from tiger.training.teacher_cache import (
    TOP_K,
    CacheSettings,
    missing_shards,
    serialize,
    write_settings,
    write_shard,
)

SAMPLE = 16  # examples that the size is estimated from
Task = KDWarmStart | DraftHeadDistillation


class CacheTeacherCLI(TigerCLI):
    """The options of `fit`, and how much of the verifier's lessons is kept."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of the cache."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--top_k", type=int, default=TOP_K, help="Tokens kept per answer position, for KD."
        )
        parser.add_argument("--shard_size", type=int, default=256, help="Examples per file.")


def cache_teacher(options: list[str]) -> Path:
    """Fills the folder that `teacher_cache` names; a killed run continues where it stopped.

    Args:
        options: Config files and options of the run, with `--shard_size` and, for KD, `--top_k`.

    Returns:
        The folder.

    Raises:
        ValueError: If the task has no lessons to keep or names no cache, an option is out of range, the
            folder holds another cache, or the disk is too small.
    """
    cli = CacheTeacherCLI.build(options, run=False)
    task, top_k, shard_size = cli.model, int(cli.config["top_k"]), int(cli.config["shard_size"])
    if not isinstance(task, Task) or not task.options.teacher_cache:
        raise ValueError(
            "cache-teacher takes the options of a KD run or a head's training that names its cache; give a "
            "config with KDWarmStart or DraftHeadDistillation, and --model.init_args.teacher_cache FOLDER."
        )
    task.prepare_data()
    cli.datamodule.setup("fit")
    loader = cli.datamodule.train_dataloader()
    task.configure_model()
    task.to(cli.trainer.strategy.root_device)
    if not 0 < top_k < task.verifier.vocab_size or shard_size < 1:
        raise ValueError(
            f"top_k is {top_k} and shard_size {shard_size}; keep 1 to {task.verifier.vocab_size - 1} tokens "
            "of the vocabulary, and 1 example per shard or more."
        )
    settings = task.cache_settings(loader, top_k, shard_size)
    folder = Path(task.options.teacher_cache)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        fill(task, loader, settings, folder)
    return folder


def fill(task: Task, loader: ResumableLoader, settings: CacheSettings, folder: Path) -> None:
    """Writes the shards that are missing or damaged, after saying how much the whole cache takes."""
    missing = missing_shards(folder, settings)
    _announce(task, loader, settings, folder, missing)
    write_settings(folder, settings)
    for shard in track(missing, description="Teacher cache"):
        start = shard * settings.shard_size
        indices = range(start, min(start + settings.shard_size, settings.num_examples))
        names: list[str] = []
        kept: list[dict[str, Tensor]] = []
        for first in range(indices.start, indices.stop, loader.batch_size):
            batch = range(first, min(first + loader.batch_size, indices.stop))
            examples = [loader.dataset[index] for index in batch]
            names += [example.prompt.id for example in examples]
            kept += task.kept_lessons(examples, settings)
        write_shard(folder, shard, serialize(names, kept))


def _announce(
    task: Task, loader: ResumableLoader, settings: CacheSettings, folder: Path, missing: list[int]
) -> None:
    """Prints how large the cache is going to be.

    Raises:
        ValueError: If the disk has no room for what is missing.
    """
    count = settings.num_examples
    indices = sorted({count * step // SAMPLE for step in range(SAMPLE)})
    sample = [kept for i in indices for kept in task.kept_lessons([loader.dataset[i]], settings)]
    size = len(serialize([str(i) for i in indices], sample)) / len(sample) * count
    left = size * len(missing) / settings.num_shards
    what = f"top {settings.top_k} of {task.verifier.vocab_size:,} tokens"
    if settings.layers is not None:
        what = (
            f"hidden states, those of layers {list(settings.layers)} too"
            if settings.layers
            else "hidden states"
        )
    print(
        f"Teacher cache {folder}: {count:,} examples in {settings.num_shards} shards, about "
        f"{size / 1e6:,.3g} MB ({what}{', attention' if settings.guidance else ''}); {len(missing)} shards "
        "to make."
    )
    if left > (free := shutil.disk_usage(folder).free):
        raise ValueError(
            f"{folder} needs {left / 1e6:,.3g} MB more, the disk has {free / 1e6:,.3g} MB. Keep fewer "
            "tokens or layers, use fewer examples, or name a folder on another disk."
        )
