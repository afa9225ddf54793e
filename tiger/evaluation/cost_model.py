"""The speed that the cost model promises (paper App. A): fewer rounds, each at its measured price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BASELINE = "autoregressive"  # the decoder that all speed is measured against
Entry = Mapping[str, Any]


def predicted_speedup(
    entry: Entry, plain: Entry, acclen: float | None = None, counts_bonus: bool = True
) -> float:
    """Speedup that a decoder's own rounds promise.

    An answer of N tokens takes its first token and (N - 1) / (AccLen + 1) rounds, each with its routing,
    drafting and verification. N is that of the autoregressive decoder, tokens per second times latency.

    Args:
        entry: A drafting decoder's entry of `metrics.json`, timed.
        plain: The autoregressive decoder's entry beside it.
        acclen: AccLen to predict for; the decoder's own by default.
        counts_bonus: Whether a round decides the bonus besides; the paper's N / AccLen leaves it out.
    """
    decided = (entry["acclen"] if acclen is None else acclen) + counts_bonus
    tokens = plain["tokens_per_second"] * plain["latency_s"] / plain["batch_size"]
    one_round = sum(entry["phase_ms"].values()) / 1000
    total = entry["first_token_s"] + max(tokens - 1, 0) / decided * one_round
    return float(plain["latency_s"] / total)


def with_predictions(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Benchmark entries with what the cost model says of them; null for what has no times or no drafts."""
    plain = {_place(entry): entry for entry in entries if entry["decoder"] == BASELINE}
    return [entry | _predicted(entry, plain.get(_place(entry))) for entry in entries]


def _place(entry: Entry) -> tuple[Any, ...]:
    return entry["dataset"], entry["temperature"], entry["batch_size"]


def _predicted(entry: Entry, plain: Entry | None) -> dict[str, float | None]:
    names = ("predicted_speedup", "predicted_speedup_paper", "round_ms", "predicted_over_measured")
    if plain is None or not entry["acclen"] or not any((entry["phase_ms"] or {}).values()):
        return dict.fromkeys(names)
    exact, paper = (predicted_speedup(entry, plain, counts_bonus=bonus) for bonus in (True, False))
    values = exact, paper, sum(entry["phase_ms"].values()), exact / entry["speedup"]
    return dict(zip(names, values, strict=True))
