"""Draft heads by name."""

from __future__ import annotations

from tiger.drafting.heads.base import DraftHead

HEADS: dict[str, type[DraftHead]] = {}
