"""What a drafting method must provide; adding a method means one file with this protocol and one YAML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import PhaseTimer


@dataclass
class TokenTree:
    """Proposed continuations of each root.

    Attributes:
        tokens: Token ids [B, M], the roots excluded.
        parents: Index of each token's parent among the tokens, -1 for the root; a chain by default.
        probabilities: The distributions [B, M, V] that the tokens were drawn from; None for a deterministic
            proposal, which is then accepted by the point-mass rule.
        routes: Routed bank rows of each request, for the records.
        scores: Router scores of those rows.
    """

    tokens: Tensor
    parents: tuple[int, ...] = ()
    probabilities: Tensor | None = None
    routes: list[list[int]] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parents = self.parents or tuple(range(-1, self.tokens.shape[1] - 1))

    @property
    def is_chain(self) -> bool:
        """Whether the tree has one branch."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))


class Drafter(Protocol):
    """Proposes tokens for a batch of requests."""

    def begin(
        self, prompts: Sequence[Prompt], reserve: int, sampling: Sampling, generators: list[torch.Generator]
    ) -> Any:
        """Reads the prompts; returns the requests' state. `reserve` counts answer and block tokens."""

    def commit(self, state: Any, decided: list[list[int]]) -> None:
        """Takes in newly decided tokens per row, accepted ones and bonus; the last one is the next root."""

    def propose(self, state: Any, block_size: int, timer: PhaseTimer) -> TokenTree:
        """Proposes `block_size` tokens after each root; times its "route" and "draft" phases."""

    def select_rows(self, state: Any, rows: list[int]) -> None:
        """Keeps the given requests; the others have ended."""
