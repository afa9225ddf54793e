"""Lightning callbacks: one class per file, re-exported here so that configs can use the short name."""

from callbacks.accepted_length import AcceptedLengthHistogram
from callbacks.export_drafter import ExportDrafter
from callbacks.hyper_parameters import HyperParameters
from callbacks.progress_bar import TigerProgressBar
from callbacks.provenance import Provenance
from callbacks.random_state import RandomState
from callbacks.route_change import RouteChange
from callbacks.routing_images import RoutingImages
from callbacks.stop_on_bad_loss import StopOnBadLoss
from callbacks.throughput import ThroughputMonitor
from callbacks.trace_text import TraceText

__all__ = [
    "AcceptedLengthHistogram",
    "ExportDrafter",
    "HyperParameters",
    "Provenance",
    "RandomState",
    "RouteChange",
    "RoutingImages",
    "StopOnBadLoss",
    "ThroughputMonitor",
    "TigerProgressBar",
    "TraceText",
]
