"""The training tasks as Lightning modules."""

from tiger.training.acceptance_alignment import AcceptanceAlignment
from tiger.training.base import DraftTask
from tiger.training.draft_head_distillation import DraftHeadDistillation
from tiger.training.kd_warm_start import KDWarmStart

__all__ = ["AcceptanceAlignment", "DraftHeadDistillation", "DraftTask", "KDWarmStart"]
