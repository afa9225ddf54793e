"""What a drafting method must provide; adding a method means one file with this protocol and one YAML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tiger.backbones.base import Assembled, Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import NO_NODE, ROOT, PhaseTimer

PROMPT_CHUNK = 256  # prompt tokens whose logits are there at once


@dataclass
class TokenTree:
    """Proposed continuations of each root.

    Attributes:
        tokens: Token ids [B, M], the roots excluded.
        parents: Index of each token's parent among its row's tokens [B, M], which stands before it; `ROOT`
            for the root's children, `NO_NODE` for padding. None for a chain: each token follows the last.
        probabilities: What the tokens were drawn from [B, M, V]; None for a deterministic proposal, which is
            accepted by the point-mass rule. Children of one parent share a distribution; they were drawn from
            it without replacement, in their order, and how many there are may not depend on what was drawn.
        lengths: Tokens of each row's chain, where they differ; what stands behind them is padding.
        routes: Routed bank rows of each request, for the records.
        scores: Router scores of those rows.
    """

    tokens: Tensor
    parents: Tensor | None = None
    probabilities: Tensor | None = None
    lengths: list[int] | None = None
    routes: list[list[int]] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    @classmethod
    def of_rows(cls, tokens: list[list[int]], parents: list[list[int]], device: torch.device) -> TokenTree:
        """A deterministic tree of rows of any size."""
        width = max(map(len, tokens))
        ids = [row + [0] * (width - len(row)) for row in tokens]
        above = [row + [NO_NODE] * (width - len(row)) for row in parents]
        shape = (len(tokens), width)
        return cls(
            torch.tensor(ids, dtype=torch.long, device=device).view(shape),
            torch.tensor(above, dtype=torch.long, device=device).view(shape),
        )

    def ancestors(self) -> Tensor | None:
        """Who sees whom [B, M + 1, M + 1], the root first; None for a chain.

        Every token sees its ancestors and itself, padding the root and itself.
        """
        if self.parents is None:
            return None
        size = self.parents.shape[1] + 1
        above = torch.nn.functional.pad(self.parents.clamp_min(ROOT) + 1, (1, 0))
        seen = torch.eye(size, device=above.device) + torch.nn.functional.one_hot(above, size)
        for _ in range(size.bit_length()):  # each product doubles the distance
            seen = (seen @ seen).clamp_max(1)
        return seen > 0


@dataclass
class Reading:
    """What the verifier made of the tokens of one pass: a prompt, or the roots and their trees.

    Attributes:
        tokens: Token ids [B, T].
        hidden: Hidden states [B, T, D] behind the final norm.
        features: What the drafter asked for by its `feature_layers` [B, T, F].
        score: Gives the logits [..., V] of hidden states [..., D].
        kept: Places of the decided text tokens of each row: of a prompt all that are neither visual nor
            padding, of a pass the root and the accepted tokens.
        logits: Logits [B, T, V]; None for a prompt, where they would be large.
        valid: Bool mask [B, T] of text tokens, without visual ones and padding; None if all are.
        prompt: The prompts as the verifier's language model read them; None for a pass.
    """

    tokens: Tensor
    hidden: Tensor
    features: Tensor
    score: Callable[[Tensor], Tensor]
    kept: list[list[int]]
    logits: Tensor | None = None
    valid: Tensor | None = None
    prompt: Assembled | None = None

    def places(self) -> list[list[int]]:
        """Places of all text tokens of each row, rejected ones too."""
        if self.valid is None:
            return [list(range(self.tokens.shape[1])) for _ in self.kept]
        return [row.nonzero()[:, 0].tolist() for row in self.valid]

    def likeliest(self, count: int) -> Tensor:
        """The `count` likeliest next tokens [B, T, count] of every token, the likeliest first."""
        if self.logits is not None:
            return self.logits.topk(min(count, self.logits.shape[-1])).indices
        parts = map(self.score, self.hidden.split(PROMPT_CHUNK, dim=1))
        return torch.cat([part.topk(min(count, part.shape[-1])).indices for part in parts], dim=1)


class Drafter(Protocol):
    """Proposes tokens for a batch of requests.

    Attributes:
        feature_layers: Layers of the verifier whose inputs it reads; none for the final hidden states.
    """

    feature_layers: tuple[int, ...]

    def num_nodes(self, block_size: int) -> int:
        """The most tokens that a round proposes to a request; the caches keep room for them."""

    def begin(
        self, prompts: Sequence[Prompt], reserve: int, sampling: Sampling, generators: list[torch.Generator]
    ) -> Any:
        """Reads the prompts; returns the requests' state. `reserve` counts answer and block tokens."""

    def observe(self, state: Any, reading: Reading) -> None:
        """Takes in what the verifier made of the prompts, once, and of every tree, before its `commit`."""

    def commit(self, state: Any, decided: list[list[int]]) -> None:
        """Takes in newly decided tokens per row, accepted ones and bonus; the last one is the next root."""

    def propose(self, state: Any, block_size: int, timer: PhaseTimer) -> TokenTree:
        """Proposes branches of at most `block_size` tokens; times its "route" and "draft" phases."""

    def select_rows(self, state: Any, rows: list[int]) -> None:
        """Keeps the given requests; the others have ended."""
