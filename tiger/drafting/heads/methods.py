"""Draft heads by name."""

from __future__ import annotations

from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.medusa import MedusaHead
from tiger.drafting.heads.specflash import SpecFlashHead

HEADS: dict[str, type[DraftHead]] = {
    MedusaHead.method: MedusaHead,
    SpecFlashHead.method: SpecFlashHead,
}
