"""How far KD from cached lessons is from live KD, by the number of tokens that the cache keeps."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch
from kd_throughput import Bench
from torch import Tensor

from tiger.evaluation.timing import limit_threads, medians
from tiger.training.teacher_cache import CacheSettings, condense

QUICK = {"num_examples": 8, "repeats": 3}
FULL = {"num_examples": 32, "repeats": 7}


class CachedBench(Bench):
    """A KD batch whose lessons are live or kept."""

    def keep(self, top_k: int) -> int:
        """Keeps the lessons of the batch; returns their bytes."""
        examples = self.batch.examples
        lessons = self.task.teacher.read([e.prompt for e in examples], [e.response for e in examples])
        settings = CacheSettings("", "", "", self.task.options.temperature, top_k, (4, 2.0), len(examples), 1)
        with torch.no_grad():
            kept = [condense(x, self.task.verifier.logits(x.hidden), settings) for x in lessons]
        by_name = {e.prompt.id: entry for e, entry in zip(examples, kept, strict=True)}
        self.lookup: Callable[[str, torch.device], dict[str, Tensor]] = lambda name, _: by_name[name]
        return sum(value.nbytes for lesson in kept for value in lesson.values())

    def run(self, cached: bool) -> tuple[float, Tensor]:
        """KD loss and gradient of one step over all anchors."""
        self.task.hparams.teacher_cache = "memory" if cached else None
        self.task.cache = self.lookup if cached else None  # type: ignore[assignment]
        loss = self.together()["loss/kd"]
        gradients = [p.grad.flatten() for p in self.task.parameters() if p.grad is not None]
        return loss, torch.cat(gradients)


def main() -> None:
    """Prints one line per number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few examples")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--top_k", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--temperature", type=float, default=1.0, help="above 1: a flatter verifier")
    parser.add_argument("--num_threads", type=int, default=1)
    options = parser.parse_args()
    limit_threads(options.num_threads)
    size = QUICK if options.quick else FULL
    task = {"drafter": "tiny/vanilla", "num_anchors": 4, "temperature": options.temperature}
    bench = CachedBench(size["num_examples"], **task)
    tokens = sum(len(example.response) for example in bench.batch)
    print(" top k bytes/token  live loss cached loss  gradient differs by")
    for top_k in options.top_k:
        kept = bench.keep(top_k)
        live, cached = bench.run(False), bench.run(True)
        apart = ((live[1] - cached[1]).norm() / live[1].norm()).item()
        print(f"{top_k:6} {kept / tokens:11.0f} {live[0]:10.5f} {cached[0]:11.5f} {apart:20.3%}")
    seconds = medians({"live": lambda: bench.run(False), "cached": lambda: bench.run(True)}, size["repeats"])
    ratio = seconds["live"] / seconds["cached"]
    print(f"a step from the cache is {ratio:.2f} times as fast as one with the verifier's pass")
    if options.json:
        equal = abs(live[0] - cached[0]) <= 1e-3 * live[0]
        print(json.dumps({"ratio": ratio, "equal": equal, "top_k": options.top_k[-1], "gradient": apart}))


if __name__ == "__main__":
    main()
