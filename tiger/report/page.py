"""Rendering of self-contained pages from the shipped templates."""

from __future__ import annotations

import re
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


def file_name(name: str) -> str:
    """The page of a source; those of the front page and of training are taken."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "source"
    return f"{slug}-results.html" if slug in ("index", "training") else f"{slug}.html"
