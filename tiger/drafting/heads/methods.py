"""Draft heads by name."""

from __future__ import annotations

from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.eagle2 import Eagle2
from tiger.drafting.heads.eagle3 import Eagle3
from tiger.drafting.heads.medusa import MedusaHead
from tiger.drafting.heads.routed_head import RoutedHead
from tiger.drafting.heads.specflash import SpecFlashHead
from tiger.drafting.heads.vispec import ViSpec

HEADS: dict[str, type[DraftHead]] = {
    head.method: head for head in (MedusaHead, Eagle2, Eagle3, ViSpec, SpecFlashHead, RoutedHead)
}
