"""The two training stages as Lightning modules."""

from tiger.training.acceptance_alignment import AcceptanceAlignment
from tiger.training.base import DraftTask
from tiger.training.kd_warm_start import KDWarmStart

__all__ = ["AcceptanceAlignment", "DraftTask", "KDWarmStart"]
