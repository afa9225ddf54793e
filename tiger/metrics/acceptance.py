"""How much of what is drafted the verifier keeps: AccLen, its distribution, and the rounds that are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from tiger.decoding.records import Generation


class AcceptanceMetrics(Metric):
    r"""Acceptance statistics of generations, from sums only, so that shards merge exactly.

    Let M be the number of rounds and A_i the accepted length of round i: drafted tokens that reached the
    answer, root and bonus excluded, cut at the end token and at the length limit. The first token of an
    answer is decided by the verifier's prefill, without a round; it counts as an answer token and nowhere
    else. With N answer tokens in R answers, N - R tokens are decided by rounds.

    `compute` returns

    - `acclen` = \bar A = 1/M \sum_i A_i (higher is better),
    - `mat` = AccLen + 1: the mean number of tokens that a verifier pass yields,
    - `p_accept_ge` = {n: #{i: A_i >= n} / M} for n = 1..block_size; empty without rounds,
    - `accept_rate_by_position` = {n: #{A_i >= n} / #{rounds in which position n was judged}}: the chance that
      token n (of a tree: one of the tokens at depth n) is kept once its predecessors were; positions behind
      the end of an answer, of a chain that ended early, and behind the leaves of a tree, are not judged,
    - `rounds` = M and `verifier_passes`, which adds one pass per token for answers made without rounds,
    - `rounds_per_token` = verifier passes / (N - R): 1 for autoregressive decoding (lower is better),
    - `rounds_per_token_paper` = 1 / \bar A: the paper's N / \bar A per token, which forgets the bonus,
    - `rounds_per_answer` = M / R (the paper's VerRds, E[M]) and `rounds_per_answer_paper` = N / (R \bar A),
    - `answers` = R and `answer_tokens` = N.

    The paper's approximations are infinite where nothing was accepted.

    Args:
        block_size: Longest block or branch that is drafted.
        kwargs: Options of `torchmetrics.Metric`.

    Raises:
        ValueError: If the block size is below one.
    """

    full_state_update = False
    reached: Tensor
    judged: Tensor
    tokens: Tensor
    answers: Tensor
    passes: Tensor

    def __init__(self, block_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a round drafts one token or more.")
        self.block_size = block_size
        for name, shape in (("reached", (block_size + 1,)), ("judged", (block_size + 1,))):
            self.add_state(name, torch.zeros(shape, dtype=torch.long), dist_reduce_fx="sum")
        for name in ("tokens", "answers", "passes"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, generations: Sequence[Generation]) -> None:
        """Adds finished answers.

        Args:
            generations: Answers with their round records.

        Raises:
            ValueError: If a round drafted a branch of more tokens than `block_size`.
        """
        reached, judged = [0] * (self.block_size + 1), [0] * (self.block_size + 1)
        for generation in generations:
            for record in generation.rounds:
                if (depth := record.depth) > self.block_size:
                    raise ValueError(
                        f"A round of {generation.id!r} drafted {depth} tokens in a row, the metric was "
                        f"built with block_size {self.block_size}. Give it the decoder's block size."
                    )
                reached[record.accepted] += 1
                judged[record.accepted + record.was_rejected] += 1
        self.reached += self._at_least(reached)
        self.judged += self._at_least(judged)
        self.answers += len(generations)
        self.tokens += sum(len(generation.tokens) for generation in generations)
        self.passes += sum(len(g.rounds) or max(len(g.tokens) - 1, 0) for g in generations)

    def _at_least(self, histogram: list[int]) -> Tensor:
        """Counts [block_size + 1] of values of n or more from counts of values equal to n."""
        return torch.tensor(histogram, device=self.reached.device).flip(0).cumsum(0).flip(0)

    def compute(self) -> dict[str, Any]:
        """The statistics of all answers so far, as plain numbers."""
        reached, judged = self.reached.tolist(), self.judged.tolist()
        rounds, tokens, answers = reached[0], int(self.tokens), int(self.answers)
        acclen = _ratio(sum(reached[1:]), rounds)
        positions = range(1, self.block_size + 1)
        return {
            "acclen": acclen,
            "mat": acclen + 1,
            "p_accept_ge": {n: reached[n] / rounds for n in positions} if rounds else {},
            "accept_rate_by_position": {n: reached[n] / judged[n] for n in positions if judged[n]},
            "rounds": rounds,
            "verifier_passes": int(self.passes),
            "rounds_per_token": _ratio(int(self.passes), tokens - answers),
            "rounds_per_token_paper": 1 / acclen if acclen else float("inf"),
            "rounds_per_answer": _ratio(rounds, answers),
            "rounds_per_answer_paper": _ratio(tokens, answers) / acclen if acclen else float("inf"),
            "answers": answers,
            "answer_tokens": tokens,
        }


def _ratio(part: float, whole: float) -> float:
    """The quotient, 0 where there is nothing to divide by."""
    return part / whole if whole else 0.0
