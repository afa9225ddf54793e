"""Times KD steps: all anchors of an example in one pass, against one anchor per pass.

A block is one anchor with the tokens behind it. Both ways train on the same blocks with the same class,
forward and backward. The losses of the single passes, weighted by their
tokens, must add up to that of the joint pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch
from torch import Tensor

from data_modules.collate import Batch, Example
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.evaluation.prompts import load_prompts
from tiger.evaluation.timing import limit_threads, medians
from tiger.training import KDWarmStart

QUICK = {"num_examples": 4, "repeats": 3}
FULL = {"num_examples": 16, "repeats": 9}


class Bench:
    """A KD task whose anchors are given, and a batch of the verifier's own answers."""

    def __init__(self, num_examples: int, **options: Any) -> None:
        self.task = KDWarmStart(**options)
        self.task.configure_model()
        self.task.log = self._log  # type: ignore[method-assign]
        self.logged: dict[str, float] = {}
        prompts = load_prompts("synthetic_long", num_examples)
        answers = AutoregressiveDecoder(self.task.verifier, 96).generate(prompts)
        self.batch = Batch(
            [Example(p, torch.tensor(a.tokens), "", "") for p, a in zip(prompts, answers, strict=True)]
        )
        generators = self.task.generators(self.batch.examples, 0)
        self.drawn = self.task.anchors(self.batch.examples, generators)

    def step(self, anchors: Tensor) -> dict[str, float]:
        """Loss and gradient of one pass over the given anchors [B, A]; what it logged."""
        self.task.anchors = lambda *_: anchors  # type: ignore[method-assign]
        self.task.training_step(self.batch, 0).backward()
        return dict(self.logged)

    def together(self) -> dict[str, float]:
        """All anchors in one pass."""
        self.task.zero_grad()
        return self.step(self.drawn)

    def apart(self) -> dict[str, float]:
        """One anchor per pass; losses as the joint pass weighs them."""
        self.task.zero_grad()
        passes = [self.step(anchors) for anchors in self.drawn.split(1, dim=1)]
        lengths = torch.tensor([len(example.response) for example in self.batch])
        behind = (lengths[:, None] - 1 - self.drawn).clamp(max=self.task.block_size)
        tokens = behind.sum(0) / behind.sum()
        return {
            "loss/kd": sum(w.item() * logged["loss/kd"] for w, logged in zip(tokens, passes, strict=True)),
            "loss/guidance": sum(logged["loss/guidance"] for logged in passes) / len(passes),
        }

    def _log(self, name: str, value: Tensor, **_: Any) -> None:
        self.logged[name] = value.item()


def main() -> None:
    """Prints a line per number of anchors, with live and with remembered lessons of the verifier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few examples")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--num_anchors", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--block_size", type=int, default=8)
    parser.add_argument("--num_threads", type=int, default=1)
    options = parser.parse_args()
    limit_threads(options.num_threads)
    size = QUICK if options.quick else FULL
    print("lessons      anchors  apart: blocks/s  together  ratio  loss differs by")
    ratios, differences = {}, []
    for remember in (False, True):
        for count in options.num_anchors:
            settings = {"drafter": "tiny/kd", "num_anchors": count, "block_size": options.block_size}
            bench = Bench(size["num_examples"], remember=remember, **settings)
            apart, together = bench.apart(), bench.together()
            differences.append(max(abs(apart[name] - together[name]) for name in apart))
            seconds = medians({"apart": bench.apart, "together": bench.together}, size["repeats"], warmup=0)
            ratios[remember, count] = seconds["apart"] / seconds["together"]
            blocks = bench.drawn.numel()
            print(
                f"{'remembered' if remember else 'live':12} {count:7} {blocks / seconds['apart']:16.1f} "
                f"{blocks / seconds['together']:9.1f} {ratios[remember, count]:5.2f}x {differences[-1]:16.1e}"
            )
    if options.json:
        most = max(options.num_anchors)
        equal = max(differences) <= 1e-5
        result = {"ratio": ratios[False, most], "equal": equal, "anchors": most}
        print(json.dumps(result | {"remembered_ratio": ratios[True, most]}))


if __name__ == "__main__":
    main()
