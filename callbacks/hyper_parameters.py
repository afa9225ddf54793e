"""What tells runs apart, beside what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from callbacks.run_folder import run_folder

RESULTS = ("accept/length", "loss/total", "reward/mean")
TRAINER = ("precision", "accumulate_grad_batches", "gradient_clip_val", "max_steps", "max_time", "devices")


class HyperParameters(Callback):
    """Fills TensorBoard's HPARAMS page at the end of training, so that runs can be sorted and compared.

    The hyper-parameters are the options of task and data in the run's config.yaml, under their names there;
    the metrics final/accept/length, final/loss/total and final/reward/mean are the last values of those.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes them; a run that an error or a signal stopped leaves none, nor does one without a config."""
        path, known = run_folder(trainer) / "config.yaml", trainer.callback_metrics
        results = {f"final/{name}": float(known[name]) for name in RESULTS if name in known}
        if not results or not path.is_file():
            return
        config = yaml.safe_load(path.read_text())
        chosen = {
            "model": config["model"],
            "data": config["data"],
            "trainer": {name: config["trainer"].get(name) for name in TRAINER},
        }
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(dict(flat(chosen)), results)


def flat(options: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each number and word of nested options with its dotted name; `init_args` is left out of names."""
    for key, value in options.items():
        name = above if key == "init_args" else (*above, key)
        if isinstance(value, dict):
            yield from flat(value, name)
        elif isinstance(value, (bool, int, float, str)):
            yield ".".join(name), value
