"""What the cost model says of speed: more accepted tokens, fewer rounds, each at its measured price."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Cell = Mapping[str, Any]


def predicted_speedup(cell: Cell, plain: Cell, acclen: float | None = None) -> float:
    """Speedup that a decoder's own rounds promise, after the paper's appendix on cost.

    An answer of N tokens takes its first token and (N - 1) / (AccLen + 1) rounds; the paper leaves out the
    first token and the bonus. N is that of the autoregressive decoder, tokens per second times latency.

    Args:
        cell: A drafting decoder's entry of `metrics.json`, timed.
        plain: The autoregressive decoder's entry beside it.
        acclen: AccLen to predict for; the decoder's own by default.
    """
    accepted = cell["acclen"] if acclen is None else acclen
    tokens = plain["tokens_per_second"] * plain["latency_s"] / plain["batch_size"]
    one_round = sum(cell["phase_ms"].values()) / 1000
    total = cell["first_token_s"] + max(tokens - 1, 0) / (accepted + 1) * one_round
    return float(plain["latency_s"] / total)


def cost_line(cells: Sequence[Cell], plain: Cell, points: int = 40) -> list[tuple[float, float]]:
    """AccLen and predicted speedup along the range of some decoders, at the price of their median round."""
    middle = {
        "first_token_s": statistics.median(cell["first_token_s"] for cell in cells),
        "phase_ms": {"round": median_round_ms(cells)},
    }
    ends = [cell["acclen"] for cell in cells]
    low, high = max(min(ends) - 0.3, 0.0), max(ends) + 0.3
    places = [low + (high - low) * step / (points - 1) for step in range(points)]
    return [(acclen, predicted_speedup(middle, plain, acclen)) for acclen in places]


def median_round_ms(cells: Sequence[Cell]) -> float:
    """Milliseconds of a round, the median over decoders."""
    return statistics.median(sum(cell["phase_ms"].values()) for cell in cells)
