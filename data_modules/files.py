"""Files that are either whole or absent."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a file under a temporary name and renames it, so that a killed run leaves no half file.

    Args:
        path: Target; its folder exists.
        text: Content.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
