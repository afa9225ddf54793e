"""Leaves a drafter that decoders can load."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from callbacks.run_folder import run_folder
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.saving import save_head
from tiger.drafting.saving import save_drafter


class ExportDrafter(Callback):
    """Writes the drafter, or draft head, as a folder for `generate` and `benchmark`.

    Without a monitor the drafter is written at the end of training. With one it is written at each validation
    that improves the metric, and the end of training does not replace it.

    Args:
        folder: Name of the folder inside the run's folder, or an absolute path.
        monitor: Metric to watch, such as accept/length.
        mode: Whether a higher ("max") or lower ("min") metric is better.
    """

    def __init__(
        self, folder: str = "drafter", monitor: str | None = None, mode: Literal["max", "min"] = "max"
    ) -> None:
        self.folder, self.monitor, self.mode = folder, monitor, mode
        self.best: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """The best value so far, for a resumed run."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the best value so far."""
        self.best = state_dict["best"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the drafter if the monitored metric improved.

        Raises:
            ValueError: If the metric was not logged.
        """
        if self.monitor is None or trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(trainer.callback_metrics)) or "none"
            raise ValueError(
                f"ExportDrafter monitors {self.monitor!r}, which was not logged; logged are: {known}."
            )
        value = float(trainer.callback_metrics[self.monitor])
        if self.best is None or (value > self.best if self.mode == "max" else value < self.best):
            self.best = value
            self._export(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the final drafter, unless a monitored one was written."""
        if self.best is None:
            self._export(trainer, pl_module)

    def _export(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        target, drafter = run_folder(trainer) / self.folder, pl_module.whole_drafter()
        if not trainer.is_global_zero:
            return
        notes = {"step": trainer.global_step, "task": pl_module.stage}
        notes |= {"training_seconds": round(pl_module.training_seconds, 1)}
        if self.monitor is not None and self.best is not None:
            notes |= {self.monitor: self.best}
        save = save_head if isinstance(drafter, DraftHead) else save_drafter
        replace_folder(target, lambda folder: save(drafter, folder, **notes))


def replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Replaces a folder by one that is written completely first.

    Args:
        target: Folder to replace or create.
        write: Called with the temporary folder to fill.
    """
    temporary, old = target.with_name(target.name + ".tmp"), target.with_name(target.name + ".old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write(temporary)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)
