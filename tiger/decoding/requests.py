"""Bookkeeping of a batch of answers: ends, limits, generators and records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

import torch

from tiger.backbones.base import Backbone, Prompt
from tiger.decoding.records import Generation

Listener = Callable[[int, list[int]], None]


def request_seed(seed: int, name: str) -> int:
    """Seed of one request, the same on every machine and in every batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")


class Requests:
    """The answers in flight. Row i of the models' batch belongs to request `active[i]`.

    An answer ends at its first end token, at `max_new_tokens`, or where prompt and answer fill the context.

    Args:
        prompts: The requests; requests without an id are named by their index.
        backbone: Reads the prompts; knows the end tokens, the device and the tokenizer.
        max_new_tokens: Longest answer, tokens.
        seed: Seed of the run.
        listener: Called with a request's index and its new tokens.

    Attributes:
        inputs: The prompts as `backbone` reads them.
        limits: Longest possible answer of each request, tokens.

    Raises:
        ValueError: If there is no prompt, no token may be generated, or a prompt is longer than the context.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        backbone: Backbone,
        max_new_tokens: int,
        seed: int,
        listener: Listener | None,
    ) -> None:
        if not prompts or max_new_tokens < 1:
            raise ValueError(
                f"Need one prompt and one new token or more, got {len(prompts)} and {max_new_tokens}."
            )
        self.started = time.perf_counter()
        self.backbone, self.listener = backbone, listener
        self.inputs = [backbone.prepare(prompt) for prompt in prompts]
        self.limits = [min(max_new_tokens, backbone.max_positions - len(entry.ids)) for entry in self.inputs]
        self.answers = [Generation(prompt.id or str(i), []) for i, prompt in enumerate(prompts)]
        self.generators = [
            torch.Generator(backbone.device).manual_seed(request_seed(seed, answer.id))
            for answer in self.answers
        ]
        self.active = list(range(len(prompts)))
        self.ended: set[int] = set()

    @property
    def roots(self) -> list[int]:
        """Last decided token of each active request."""
        return [self.answers[i].tokens[-1] for i in self.active]

    def extend(self, tokens: list[list[int]]) -> list[int]:
        """Appends new tokens of the active requests, cut at the first end token and at the limit.

        Returns:
            How many of each row's tokens were kept.
        """
        kept, now = [], time.perf_counter() - self.started
        for index, new in zip(self.active, tokens, strict=True):
            answer = self.answers[index]
            new = new[: self.limits[index] - len(answer.tokens)]
            end = next((i for i, token in enumerate(new) if token in self.backbone.eos_ids), None)
            if end is not None:
                new, answer.finish = new[: end + 1], "eos"
            if not answer.tokens:
                answer.prefill_seconds = now
            answer.tokens += new
            answer.seconds = now
            kept.append(len(new))
            if end is not None or len(answer.tokens) == self.limits[index]:
                self.ended.add(index)
            if self.listener:
                self.listener(index, new)
        return kept

    def survivors(self) -> list[int] | None:
        """Drops ended requests; returns the batch rows to keep, or None if nobody ended."""
        rows = [row for row, index in enumerate(self.active) if index not in self.ended]
        if len(rows) == len(self.active):
            return None
        self.active = [self.active[row] for row in rows]
        return rows

    def finished(self) -> list[Generation]:
        """All answers with their text."""
        for answer in self.answers:
            answer.text = self.backbone.tokenizer.decode(answer.tokens, skip_special_tokens=True)
        return self.answers
