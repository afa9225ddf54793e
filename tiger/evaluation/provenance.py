"""What a process computes with: for the records of training runs and benchmarks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import tiger

PACKAGES = ("lightning", "transformers", "torchmetrics", "peft", "jsonargparse", "numpy")


def environment() -> dict[str, Any]:
    """Time, command line, versions, commit and hardware of this process."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "versions": {"python": platform.python_version(), "tiger": tiger.__version__}
        | {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"torch": torch.__version__},
        "git": git_state(Path(tiger.__file__).parent),
        "hardware": {
            "platform": " ".join(part for part in (platform.system(), platform.machine(), _cpu()) if part),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        },
    }


def _cpu() -> str:
    """Name of the processor; empty where the system tells none."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


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
