"""What methods without a trained drafter share: a memory per request, filled from the verifier's passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import PhaseTimer
from tiger.drafting.base import Reading, TokenTree

Memory = TypeVar("Memory")
Branches = tuple[list[int], list[int]]  # tokens and parents of a row's tree, see `TokenTree`


@dataclass
class Request(Generic[Memory]):
    """A request in flight.

    Attributes:
        memory: What the method remembers.
        device: Where its trees are wanted.
        text: Text tokens that the verifier has read, without visual ones.
        root: The last decided token.
    """

    memory: Memory
    device: torch.device
    text: list[int] = field(default_factory=list)
    root: int = -1


class TrainingFree(ABC, Generic[Memory]):
    """A drafter that proposes trees from what the verifier has read and said.

    Its trees are deterministic, so answers are exact at any temperature: with the same seed they are, token
    by token, those of autoregressive decoding.

    Args:
        warm: Whether one memory serves all requests of this object, in the order in which they come. Accepted
            lengths then depend on earlier requests, the answers never do. By default every request starts
            with an empty memory.
    """

    feature_layers: tuple[int, ...] = ()
    num_likeliest = 0  # next tokens that are remembered of each token

    def __init__(self, warm: bool = False) -> None:
        self._shared = self.new_memory() if warm else None

    @abstractmethod
    def num_nodes(self, block_size: int) -> int:
        """The most tokens that a round proposes to a request."""

    @abstractmethod
    def new_memory(self) -> Memory:
        """An empty memory."""

    def read(self, memory: Memory, text: list[int], num_new: int) -> None:
        """Takes in the last `num_new` tokens of a text."""

    def learn(self, memory: Memory, token: int, likeliest: list[int]) -> None:
        """Takes in what the verifier found likeliest behind a token."""

    @abstractmethod
    def branches(self, memory: Memory, text: list[int], depth: int) -> Branches:
        """Proposes branches of at most `depth` tokens behind a text that ends in the root."""

    def begin(
        self, prompts: Sequence[Prompt], reserve: int, sampling: Sampling, generators: list[torch.Generator]
    ) -> list[Request[Memory]]:
        """Opens a memory for every request; the prompts come with the first `observe`."""
        return [
            Request(self.new_memory() if self._shared is None else self._shared, generator.device)
            for generator in generators
        ]

    def observe(self, state: list[Request[Memory]], reading: Reading) -> None:
        """Takes in the kept tokens, and the likeliest next tokens of all, those of kept ones last."""
        tokens = reading.tokens.tolist()
        for request, row, kept in zip(state, tokens, reading.kept, strict=True):
            request.text += [row[place] for place in kept]
            self.read(request.memory, request.text, len(kept))
        if self.num_likeliest:
            likeliest = reading.likeliest(self.num_likeliest).tolist()
            rows = zip(state, tokens, likeliest, reading.places(), reading.kept, strict=True)
            for request, row, best, places, kept in rows:
                for place in sorted(places, key=set(kept).__contains__):
                    self.learn(request.memory, row[place], best[place])

    def commit(self, state: list[Request[Memory]], decided: list[list[int]]) -> None:
        """Takes the new roots."""
        for request, tokens in zip(state, decided, strict=True):
            request.root = tokens[-1]

    def propose(self, state: list[Request[Memory]], block_size: int, timer: PhaseTimer) -> TokenTree:
        """Proposes a tree to every request."""
        with timer("draft"):
            rows = [self.branches(r.memory, [*r.text, r.root], block_size) for r in state]
            return TokenTree.of_rows([t for t, _ in rows], [p for _, p in rows], state[0].device)

    def select_rows(self, state: list[Request[Memory]], rows: list[int]) -> None:
        """Keeps the given requests."""
        state[:] = [state[row] for row in rows]
