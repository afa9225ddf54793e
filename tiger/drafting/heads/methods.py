"""Draft heads by name."""

from __future__ import annotations

from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.routed_head import RoutedHead

HEADS: dict[str, type[DraftHead]] = {"routed_head": RoutedHead}
