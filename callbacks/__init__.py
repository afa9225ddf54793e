"""Lightning callbacks: one class per file, re-exported here so that configs can use the short name."""

from callbacks.accepted_length import AcceptedLengthHistogram
from callbacks.export_drafter import ExportDrafter
from callbacks.progress_bar import TigerProgressBar
from callbacks.provenance import Provenance
from callbacks.random_state import RandomState
from callbacks.routing_images import RoutingImages
from callbacks.stop_on_bad_loss import StopOnBadLoss
from callbacks.throughput import ThroughputMonitor

__all__ = [
    "AcceptedLengthHistogram",
    "ExportDrafter",
    "Provenance",
    "RandomState",
    "RoutingImages",
    "StopOnBadLoss",
    "ThroughputMonitor",
    "TigerProgressBar",
]
