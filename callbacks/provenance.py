"""What a run was made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.run_folder import run_folder, tensorboard
from tiger.evaluation.provenance import environment

FILE = "provenance.json"


class Provenance(Callback):
    """Writes provenance.json into the folder of a training run, and as text into TensorBoard.

    It holds the command line, versions, the git commit and whether the checkout was changed, the resolved
    config and the hardware. A resumed run keeps the entries of its earlier starts under `earlier`.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the file (rank zero only); a run without a logger leaves none."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero or trainer.logger is None or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        record = collect(folder) | {"world_size": trainer.world_size, "precision": str(trainer.precision)}
        path = folder / FILE
        if path.exists():
            previous = json.loads(path.read_text())
            record["earlier"] = [*previous.pop("earlier", []), previous]
        write_atomically(path, json.dumps(record, indent=2) + "\n")
        if (writer := tensorboard(trainer)) is not None:
            shown = json.dumps({key: value for key, value in record.items() if key != "config"}, indent=2)
            text = "\n".join(f"    {line}" for line in shown.splitlines())
            writer.add_text("provenance", text, trainer.global_step)


def collect(folder: Path) -> dict[str, Any]:
    """The provenance of this process.

    Args:
        folder: The run's folder; its config.yaml, if written, is the resolved config.
    """
    config = folder / "config.yaml"
    return environment() | {"config": config.read_text() if config.exists() else ""}


def write_atomically(path: Path, text: str) -> None:
    """Writes a file that is either complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
