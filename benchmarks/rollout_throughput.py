"""Times alignment rollouts and steps: prefix shared and early stop, against prefix repeated and whole blocks.

A rollout is one block that is drafted and verified; a step adds the gradient of the policy loss. All ways use
the same draws, and their losses must be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch
from torch import Tensor
from transformers import DynamicCache

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import ModelInputs, Prompt, assemble
from tiger.backbones.loading import load_backbone
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.drafting.blocks import Routes, Sampler, Texts, read_blocks, read_texts, route
from tiger.drafting.saving import load_drafter
from tiger.evaluation.prompts import load_prompts
from tiger.evaluation.timing import limit_threads, medians
from tiger.training.rewards import advantages, rewards
from tiger.training.rollouts import Rollouts, roll_out
from tiger.training.teacher import Prefixes, Teacher

QUICK = {"num_examples": 4, "repeats": 3}
FULL = {"num_examples": 8, "repeats": 9}


@dataclass
class Work:
    """One batch: prompts, the verifier's answers, anchors [B, A], and random numbers [2, B, A, G, S]."""

    prompts: list[Prompt]
    answers: list[Tensor]
    anchors: Tensor
    draws: Tensor


class Pair:
    """The models, and the three ways to roll out the blocks of a batch."""

    def __init__(self, verifier: str, drafter: str) -> None:
        self.verifier = load_backbone(verifier)
        self.drafter = load_drafter(drafter)
        self.teacher = Teacher(self.verifier)

    def work(self, num_examples: int, num_anchors: int, group_size: int, block_size: int) -> Work:
        """A batch of long answers and its draws."""
        prompts = load_prompts("synthetic_long", num_examples)
        generations = AutoregressiveDecoder(self.verifier, 96).generate(prompts)
        answers = [torch.tensor(generation.tokens) for generation in generations]
        generator = torch.Generator().manual_seed(0)
        last = torch.tensor([len(answer) - 1 for answer in answers])
        anchors = (torch.rand(num_examples, num_anchors, generator=generator) * last[:, None]).long()
        draws = torch.rand(2, *anchors.shape, group_size, block_size, generator=generator)
        return Work(prompts, answers, anchors, draws)

    def shared(self, work: Work, chunk: int | None) -> tuple[Texts, Routes, Rollouts]:
        """Every prompt and answer is read once, for all blocks of all its anchors."""
        texts = read_texts(self.drafter, *self._see(work.prompts), work.answers)
        routes = route(self.drafter, texts, work.anchors)
        prefixes = self.teacher.prefixes(work.prompts, work.answers)
        judge = self.teacher.branches(prefixes, work.anchors, work.draws.shape[3])
        sampler = Sampler(self.drafter, texts, routes, work.draws[0], 1.0)
        return texts, routes, roll_out(sampler, judge, work.draws[1], "sampling", chunk)

    def repeated(self, work: Work) -> tuple[Texts, Routes, Rollouts]:
        """Every block is a row of its own, with its own prompt and answer up to the root, drafted to the end.

        Images are encoded once per prompt here too.
        """
        num_anchors, group = work.draws.shape[2:4]
        rows = [(b, a) for b in range(len(work.prompts)) for a in range(num_anchors) for _ in range(group)]
        anchors = work.anchors.repeat_interleave(group, 1).view(-1, 1)
        answers = [work.answers[b][: int(work.anchors[b, a]) + 1] for b, a in rows]
        draws = work.draws.view(2, -1, 1, 1, work.draws.shape[-1])
        inputs, banks = self._see(work.prompts)
        texts = read_texts(self.drafter, [inputs[b] for b, _ in rows], [banks[b] for b, _ in rows], answers)
        routes = route(self.drafter, texts, anchors)
        prefixes = self._read_rows(work.prompts, [b for b, _ in rows], answers)
        judge = self.teacher.branches(prefixes, anchors, 1)
        sampler = Sampler(self.drafter, texts, routes, draws[0], 1.0)
        return texts, routes, roll_out(sampler, judge, draws[1], "sampling")

    def loss(self, work: Work, rolled: tuple[Texts, Routes, Rollouts]) -> Tensor:
        """The policy loss with reward `accepted_prefix` and credit `prefix`."""
        texts, routes, rollouts = rolled
        counts, shape = rollouts.counts, work.draws.shape[1:]
        hidden = read_blocks(self.drafter, texts, routes, rollouts.blocks, counts)[counts]
        log_q = self.drafter.backbone.logits(hidden).log_softmax(-1)
        chosen = log_q.gather(-1, rollouts.blocks[counts][:, None])[:, 0]
        terms = torch.zeros_like(rollouts.chance).masked_scatter(counts, chosen).view(shape)
        reward = rewards("accepted_prefix", rollouts.chance.view(shape), work.draws[1])
        return -(advantages(reward, "prefix") * terms).sum(-1).mean()

    @torch.no_grad()
    def _see(self, prompts: list[Prompt]) -> tuple[list[ModelInputs], list[VisualBank]]:
        return self.drafter.encode(prompts)

    @torch.no_grad()
    def _read_rows(self, prompts: list[Prompt], rows: list[int], answers: list[Tensor]) -> Prefixes:
        """The verifier's pass over repeated prefixes, without attention weights."""
        backbone = self.verifier
        inputs = [backbone.prepare(prompt) for prompt in prompts]
        banks, texts = backbone.encode(inputs), [backbone.embed(entry.ids) for entry in inputs]
        batch = assemble(
            *([values[row] for row in rows] for values in (inputs, banks, texts)),
            None,
            [backbone.embed(answer) for answer in answers],
        )
        cache = DynamicCache(config=backbone.model.config)
        hidden = backbone.run_assembled(batch, cache)
        starts = torch.tensor([n - len(a) for n, a in zip(batch.lengths, answers, strict=True)])
        positions = torch.tensor([inputs[row].next_position for row in rows])
        return Prefixes([], cache, starts, positions, hidden)


def compare(
    pair: Pair, work: Work, chunk: int, repeats: int
) -> tuple[dict[str, dict[str, float]], bool, float]:
    """Rollouts and steps per second of each way, whether their losses agree, and the mean accepted length."""
    ways: dict[str, Callable[[], tuple[Texts, Routes, Rollouts]]] = {
        "prefix repeated, whole blocks": lambda: pair.repeated(work),
        "prefix shared, whole blocks": lambda: pair.shared(work, None),
        "prefix shared, early stop": lambda: pair.shared(work, chunk),
    }

    def roll(way: str) -> Rollouts:
        with torch.no_grad():
            return ways[way]()[2]

    def step(way: str) -> float:
        pair.drafter.zero_grad()
        loss = pair.loss(work, ways[way]())
        loss.backward()
        return loss.item()

    losses = {way: step(way) for way in ways}
    equal = max(losses.values()) - min(losses.values()) <= 1e-5
    rolled = medians({way: partial(roll, way) for way in ways}, repeats)
    stepped = medians({way: partial(step, way) for way in ways}, repeats)
    blocks = work.draws[0, ..., 0].numel()
    table = {
        way: {
            "rollouts_per_second": blocks / rolled[way],
            "steps": blocks / stepped[way],
            "loss": losses[way],
        }
        for way in ways
    }
    chance = roll("prefix shared, early stop").chance
    accepted = rewards("accepted_prefix", chance, work.draws[1]).total.mean().item()
    return table, equal, accepted


def main() -> None:
    """Prints one line per way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few examples")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--verifier", default="tiny/verifier")
    parser.add_argument("--drafter", default="tiny/tiger")
    parser.add_argument("--num_anchors", type=int, default=4)
    parser.add_argument("--group_size", type=int, default=4)
    parser.add_argument("--block_size", type=int, default=32)
    parser.add_argument("--rollout_chunk", type=int, default=8)
    parser.add_argument("--num_threads", type=int, default=1)
    options = parser.parse_args()
    limit_threads(options.num_threads)
    size = QUICK if options.quick else FULL
    pair = Pair(options.verifier, options.drafter)
    work = pair.work(size["num_examples"], options.num_anchors, options.group_size, options.block_size)
    table, equal, accepted = compare(pair, work, options.rollout_chunk, size["repeats"])
    plain, best = table["prefix repeated, whole blocks"], table["prefix shared, early stop"]
    print(f"{'way':30} {'rollouts/s':>10} {'ratio':>6} {'steps: blocks/s':>15} {'ratio':>6} {'loss':>9}")
    for way, row in table.items():
        print(
            f"{way:30} {row['rollouts_per_second']:10.1f} "
            f"{row['rollouts_per_second'] / plain['rollouts_per_second']:5.2f}x {row['steps']:15.1f} "
            f"{row['steps'] / plain['steps']:5.2f}x {row['loss']:9.6f}"
        )
    print(f"mean accepted length {accepted:.2f} of {options.block_size}")
    if options.json:
        ratio = best["rollouts_per_second"] / plain["rollouts_per_second"]
        step_ratio = best["steps"] / plain["steps"]
        print(json.dumps({"ratio": ratio, "equal": equal, "step_ratio": step_ratio, "accepted": accepted}))


if __name__ == "__main__":
    main()
