"""Rendering of self-contained pages from the shipped templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def write_page(path: Path, template: str, **content: Any) -> None:
    """Writes one HTML file that needs no other file and no network.

    Args:
        path: Target file.
        template: Name of a file in `templates/`.
        content: What the template shows; texts are escaped.
    """
    environment = Environment(
        loader=PackageLoader("tiger.report"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(**content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
