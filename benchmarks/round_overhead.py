"""Measures a round's time outside model calls, and speed and speedup at batch 1, 8 and 16."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

from tiger.backbones.base import Prompt
from tiger.backbones.loading import load_backbone
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.saving import load_drafter
from tiger.evaluation.prompts import load_prompts
from tiger.evaluation.timing import limit_threads, measure

BATCH_SIZES = (1, 8, 16)
LIMIT = 0.05


class ModelClock:
    """Adds up the seconds that a decoder spends inside its models: embed, run, logits and router.

    Args:
        decoder: The decoder; its models' methods are wrapped.
    """

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        self.seconds = 0.0
        self.depth = 0
        small: Any = decoder.drafter
        for module, names in (
            (decoder.verifier.backbone, ("embed", "run", "logits")),
            (small.backbone, ("embed", "run", "logits")),
            (small.router, ("forward",)),
        ):
            for name in names:
                setattr(module, name, self.timed(getattr(module, name)))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its outermost calls on the clock."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            self.depth += 1
            result = function(*args, **kwargs)
            self.depth -= 1
            if self.depth == 0:
                self.seconds += time.perf_counter() - start
            return result

        return call


def overhead(verifier: str, drafter: str, prompts: Sequence[Prompt], block_size: int, tokens: int) -> float:
    """Share of a round's time at batch 1 that is spent outside model calls, the median over all rounds."""
    decoder = SpeculativeDecoder(load_backbone(verifier), load_drafter(drafter), block_size, tokens)
    decoder.generate(prompts[:1])
    clock = ModelClock(decoder)
    shares = []
    for prompt in prompts:
        marks: list[tuple[float, float]] = []  # after prefill, and after each round

        def note(index: int, new: list[int], marks: list[tuple[float, float]] = marks) -> None:
            marks.append((time.perf_counter(), clock.seconds))

        decoder.generate([prompt], note)
        for (start, before), (end, after) in itertools.pairwise(marks):
            shares.append(1 - (after - before) / (end - start))
    return statistics.median(shares)


def curve(
    verifier: str, drafter: str, prompts: Sequence[Prompt], block_size: int, tokens: int, repeats: int
) -> list[dict[str, float]]:
    """Speed and speedup over our autoregressive decoding at each batch size, end to end.

    Raises:
        RuntimeError: If the two give different answers.
    """
    backbone = load_backbone(verifier)
    runs = {
        "autoregressive": AutoregressiveDecoder(backbone, tokens).generate,
        "tiger": SpeculativeDecoder(backbone, load_drafter(drafter), block_size, tokens).generate,
    }
    answers = [[answer.tokens for answer in run(prompts)] for run in runs.values()]
    if answers[0] != answers[1]:
        raise RuntimeError("The two decoders answer differently, so their times cannot be compared.")
    rows = []
    for size in BATCH_SIZES:
        timings = measure(runs, prompts, size, repeats)
        plain, fast = timings["autoregressive"], timings["tiger"]
        rows.append(
            {
                "batch": size,
                "autoregressive": plain.tokens_per_second,
                "tiger": fast.tokens_per_second,
                "speedup": fast.speedup_over(plain),
            }
        )
    return rows


def main() -> None:
    """Prints the overhead and one line per batch size.

    Raises:
        SystemExit: With code 1 if more than 5 % of a round is spent outside model calls.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few prompts, one repeat")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--verifier", default="tiny/verifier")
    parser.add_argument("--drafter", default="tiny/tiger")
    parser.add_argument("--block_size", type=int, default=8)
    parser.add_argument("--max_new_tokens", type=int, default=96)
    options = parser.parse_args()
    limit_threads(1)
    prompts = load_prompts("synthetic_long", 16 if options.quick else 48)
    pair = (options.verifier, options.drafter)
    share = overhead(*pair, prompts, options.block_size, options.max_new_tokens)
    rows = curve(*pair, prompts, options.block_size, options.max_new_tokens, 1 if options.quick else 5)
    print(f"outside model calls at batch 1: {share:.1%} of a round (at most {LIMIT:.0%})")
    print(f"{'batch':>5} {'autoregressive':>15} {'tiger':>9} {'speedup':>8}   tokens/s")
    for row in rows:
        print(f"{row['batch']:5} {row['autoregressive']:15.0f} {row['tiger']:9.0f} {row['speedup']:7.2f}x")
    if options.json:
        first = rows[0]["speedup"]
        print(json.dumps({"ratio": first, "equal": True, "outside_model_calls": share, "curve": rows}))
    raise SystemExit(share > LIMIT)


if __name__ == "__main__":
    main()
