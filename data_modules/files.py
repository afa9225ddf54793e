"""Files that are either whole or absent, what to say of one that is neither, and folders of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def write_whole(path: Path, text: str) -> None:
    """Writes a file under a temporary name and renames it, so that a killed run leaves no half file.

    Args:
        path: Target; its folder exists.
        text: Content.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        path: The file.
        advice: What to do if it is damaged.

    Raises:
        ValueError: If it is no JSON object; naming the file and saying what is wrong and what to do.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise damaged(path, error, advice) from error
    if not isinstance(content, dict):
        raise damaged(path, f"it holds a {type(content).__name__}", advice)
    return content


def damaged(path: Path, what: object, advice: str) -> ValueError:
    """The error of a file that is not what its writer left."""
    return ValueError(f"{path} is damaged: {what}. {advice}")


@contextmanager
def alone(output: Path, verb: str) -> Iterator[None]:
    """Keeps other runs out of a folder of results.

    Args:
        output: The folder; it exists.
        verb: What writes there.

    Raises:
        ValueError: If another run is at work there.
    """
    lock = FileLock(output / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"Another {verb} writes to {output}. Wait for it to end, or give another folder as output."
        ) from error
    try:
        yield
    finally:
        lock.release()
