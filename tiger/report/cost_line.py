"""The line of the cost model through a plot of speed and AccLen."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tiger.evaluation.cost_model import Entry, predicted_speedup


def cost_line(cells: Sequence[Entry], plain: Entry, points: int = 40) -> list[tuple[float, float]]:
    """AccLen and predicted speedup along the range of some decoders, at the price of their median round."""
    middle = {
        "first_token_s": statistics.median(cell["first_token_s"] for cell in cells),
        "phase_ms": {"round": median_round_ms(cells)},
    }
    ends = [cell["acclen"] for cell in cells]
    low, high = max(min(ends) - 0.3, 0.0), max(ends) + 0.3
    places = [low + (high - low) * step / (points - 1) for step in range(points)]
    return [(acclen, predicted_speedup(middle, plain, acclen)) for acclen in places]


def median_round_ms(cells: Sequence[Entry]) -> float:
    """Milliseconds of a round, the median over decoders."""
    return statistics.median(sum(cell["phase_ms"].values()) for cell in cells)
