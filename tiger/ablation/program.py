"""Programs with their output in a file; imports nothing heavy, as each job of submitit imports it."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence


def logged(words: list[str], log: str) -> int:
    """Runs a program with its output appended to a file.

    Args:
        words: The program and its arguments.
        log: The file.

    Returns:
        Its exit status.
    """
    with open(log, "ab") as file:
        return subprocess.run(words, stdout=file, stderr=subprocess.STDOUT).returncode


def run_tiger(words: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    """Runs `python -m tiger` in this process, which ends with its ranks when the one that started it does.

    Args:
        words: Arguments, the verb first.
        log: File that output is appended to.
        environment: All environment variables.
    """
    os.setpgid(0, 0)  # ranks that it launches are killed with it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    sys.argv = ["tiger", *words]
    sys.orig_argv = [sys.executable, "-m", "tiger", *words]  # which provenance shows
    runpy.run_module("tiger", run_name="__main__", alter_sys=True)  # as a rank that it launches would be run


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)  # not even a training that ignores signals goes on alone
