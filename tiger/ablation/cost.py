"""What a drafter's speed should be, from how much is accepted and what the parts of a round take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiger.evaluation.decoders import BASELINE


def with_predictions(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Benchmark entries with the speedup that the cost model predicts (paper Eq. 26).

    Time of an answer of N tokens: its first token, then (N - 1) / (A + 1) rounds, each with its routing,
    drafting and verification. The autoregressive decoder has a round for each token. N comes from its
    latency, A is AccLen and one more for the bonus. `predicted_speedup_paper` has N / A rounds, as the paper
    writes it.

    Args:
        entries: Those of a benchmark; what was not timed gets null.
    """
    plain = {_place(entry): entry for entry in entries if entry["decoder"] == BASELINE}
    return [entry | _predicted(entry, plain.get(_place(entry))) for entry in entries]


def _place(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["dataset"], entry["temperature"], entry["batch_size"]


def _predicted(entry: dict[str, Any], plain: dict[str, Any] | None) -> dict[str, float | None]:
    names = ("predicted_speedup", "predicted_speedup_paper", "round_ms", "predicted_over_measured")
    accepted = entry["acclen"]
    if plain is None or plain["phase_ms"] is None or not accepted or not entry["phase_ms"]:
        return dict.fromkeys(names)
    step, one_round = (sum(which["phase_ms"].values()) / 1000 for which in (plain, entry))
    if not step or not one_round:
        return dict.fromkeys(names)
    tokens = max((plain["latency_s"] - plain["first_token_s"]) / step, 1.0)
    total = plain["first_token_s"] + tokens * step
    exact, paper = (
        total / (entry["first_token_s"] + tokens / each * one_round) for each in (accepted + 1, accepted)
    )
    values = exact, paper, 1000 * one_round, exact / entry["speedup"]
    return dict(zip(names, values, strict=True))
