"""What a run was made with."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import tiger
from callbacks.run_folder import run_folder, tensorboard

PACKAGES = ("lightning", "transformers", "torchmetrics", "peft", "jsonargparse", "numpy")
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
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "versions": {"python": platform.python_version(), "tiger": tiger.__version__}
        | {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"torch": torch.__version__},
        "git": git_state(Path(tiger.__file__).parent),
        "hardware": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        },
        "config": config.read_text() if config.exists() else "",
    }


def git_state(folder: Path) -> dict[str, Any]:
    """Commit of the checkout and whether it was changed since; empty outside of a checkout or without git."""
    try:
        commit, status = (
            subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": commit, "dirty": bool(status), "changed": status.splitlines()}


def write_atomically(path: Path, text: str) -> None:
    """Writes a file that is either complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
