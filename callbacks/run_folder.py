"""Where a run keeps its files, and its TensorBoard writer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def run_folder(trainer: Trainer) -> Path:
    """Folder of the run: that of the logger, or the trainer's root folder without one (call on all ranks)."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def tensorboard(trainer: Trainer) -> SummaryWriter | None:
    """The run's TensorBoard writer, if it logs there; writes nothing on ranks other than zero."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            writer: SummaryWriter = logger.experiment
            return writer
    return None
