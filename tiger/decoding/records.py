"""Records of a generation: the only source of every metric, trace and plot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

PHASES = ("route", "draft", "verify", "other")
ROOT, NO_NODE = -1, -2  # parents of a tree's first tokens and of its padding


@dataclass
class Round:
    """One round of one request: route, draft, verify, accept, commit.

    Attributes:
        drafted: Proposed token ids; of a tree the path that the verifier went comes first.
        accepted: Drafted tokens that reached the answer (accepted length A: root and bonus excluded), which
            are the first ones of `drafted`.
        bonus: The token that the verifier added, -1 if the answer ended before it.
        root: The last decided token before the round.
        route: Routed bank rows, the global token being row N; empty without routing.
        scores: Router scores of those rows.
        seconds: Wall-clock seconds of each phase (shared by all rows of a batch).
        parents: Index of each drafted token's parent in `drafted`, `ROOT` for the root; empty for a chain.
    """

    drafted: list[int]
    accepted: int
    bonus: int
    root: int
    route: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    parents: list[int] = field(default_factory=list)

    def parent(self, index: int) -> int:
        """Index of a drafted token's parent in `drafted`, `ROOT` for the root."""
        return self.parents[index] if self.parents else index - 1

    @property
    def depth(self) -> int:
        """Tokens of the longest branch."""
        if not self.parents:
            return len(self.drafted)
        depths = {ROOT: 0}
        for index, parent in enumerate(self.parents):
            depths[index] = depths[parent] + 1
        return max(depths.values())

    @property
    def was_rejected(self) -> bool:
        """Whether the verifier refused all that was proposed behind the last accepted token."""
        goes_on = self.accepted - 1 in self.parents if self.parents else self.accepted < len(self.drafted)
        return self.bonus >= 0 and goes_on


def path_first(tokens: list[int], parents: list[int], path: list[int]) -> tuple[list[int], list[int]]:
    """A tree's tokens and parents without padding, renumbered so that a path from the root comes first."""
    order = path + [i for i, parent in enumerate(parents) if parent != NO_NODE and i not in path]
    places = {ROOT: ROOT} | {index: place for place, index in enumerate(order)}
    return [tokens[i] for i in order], [places[parents[i]] for i in order]


@dataclass
class Generation:
    """The answer to one prompt and how it came about.

    Attributes:
        id: The prompt's id.
        tokens: Answer token ids, the end token included where it was reached.
        text: Decoded answer.
        finish: "eos" or "length".
        rounds: One record per round; empty for autoregressive decoding.
        prefill_seconds: From the start to the first token.
        seconds: From the start to the last token of this request.
    """

    id: str
    tokens: list[int]
    text: str = ""
    finish: str = "length"
    rounds: list[Round] = field(default_factory=list)
    prefill_seconds: float = 0.0
    seconds: float = 0.0


class PhaseTimer:
    """Adds up wall-clock seconds per phase of a round.

    Args:
        device: Device to synchronise with; a CUDA device is waited for at each reading.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.cuda = torch.device(device).type == "cuda"
        self.seconds: dict[str, float] = {}
        self.started = self.now()

    def now(self) -> float:
        """Seconds on a monotonic clock."""
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times a block as part of `phase`."""
        start = self.now()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + self.now() - start

    def lap(self) -> dict[str, float]:
        """Seconds per phase since the last lap; what no phase claimed is "other"."""
        end = self.now()
        seconds = {phase: self.seconds.get(phase, 0.0) for phase in PHASES[:-1]}
        seconds["other"] = end - self.started - sum(seconds.values())
        self.seconds, self.started = {}, end
        return seconds
