"""The progress bar with the numbers that matter."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

SHOWN = {"accept/length": "AccLen", "reward/mean": "reward"}


class TigerProgressBar(RichProgressBar):
    """Rich progress bar that also shows AccLen of the last validation and the reward of the last step."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Lightning's own entries without the version number, then AccLen and reward once they are known."""
        items = super().get_metrics(trainer, pl_module)
        items = {name: value for name, value in items.items() if name != "v_num" and name not in SHOWN}
        known = trainer.callback_metrics
        return items | {name: f"{float(known[key]):.2f}" for key, name in SHOWN.items() if key in known}
