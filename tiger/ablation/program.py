"""A program with its output in a file; imports nothing heavy, as each job of submitit imports it."""

from __future__ import annotations

import subprocess


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
