"""The only speculative loop: route, draft, verify, accept, commit, until every answer has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.loading import check_pair, reads_alike
from tiger.decoding.acceptance import (
    Sampling,
    accept_greedy,
    accept_sampled,
    accept_tree_greedy,
    accept_tree_sampled,
    accept_typical,
    draw,
)
from tiger.decoding.records import Generation, PhaseTimer, Round, path_first
from tiger.decoding.requests import Listener, Requests
from tiger.decoding.verifier import Verifier
from tiger.drafting.base import Drafter, TokenTree

Acceptance = Literal["exact", "typical_lossy"]


class SpeculativeDecoder:
    """Exact speculative decoding with any drafter.

    Greedy output equals the verifier's own; sampled output follows the verifier's own distribution, unless a
    lossy acceptance is asked for.

    Args:
        verifier: The verifier's backbone.
        drafter: The drafting method.
        block_size: Tokens drafted in one round; in a tree those of its longest branch.
        max_new_tokens: Longest answer, tokens.
        sampling: How tokens are drawn.
        seed: Seed; each request's generator is derived from it and the prompt's id.
        acceptance: "exact", or "typical_lossy" for Medusa's rule at temperatures above 0, see
            `accept_typical`; at 0 both are exact.

    Raises:
        ValueError: If the block size is below one, drafter and verifier do not share one vocabulary, or there
            is no such acceptance.
    """

    def __init__(
        self,
        verifier: Backbone,
        drafter: Drafter,
        block_size: int = 8,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        seed: int = 0,
        acceptance: Acceptance = "exact",
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a round drafts one token or more.")
        if acceptance not in (known := get_args(Acceptance)):
            raise ValueError(f"There is no acceptance {acceptance!r}; choose {' or '.join(known)}.")
        self.shares_inputs = False
        if isinstance(small := getattr(drafter, "backbone", None), Backbone):
            check_pair(verifier, small)
            self.shares_inputs = reads_alike(verifier, small)
        self.verifier, self.drafter = Verifier(verifier, drafter.feature_layers), drafter
        self.block_size, self.max_new_tokens = block_size, max_new_tokens
        self.sampling, self.seed = sampling or Sampling(), seed
        self.is_lossy = acceptance != "exact" and not self.sampling.is_greedy

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], listener: Listener | None = None) -> list[Generation]:
        """Answers a batch of prompts; rows never influence one another.

        Args:
            prompts: B requests.
            listener: Called with the request's index and its new tokens.

        Returns:
            One generation per prompt, in order.
        """
        backbone = self.verifier.backbone
        requests = Requests(prompts, backbone, self.max_new_tokens, self.seed, listener)
        reserve = max(requests.limits) + self.drafter.num_nodes(self.block_size) + 1
        state, logits = self.verifier.prefill(requests.inputs, reserve)
        if self.shares_inputs:
            prompts = [replace(p, prepared=entry) for p, entry in zip(prompts, requests.inputs, strict=True)]
        draft_state = self.drafter.begin(prompts, reserve, self.sampling, requests.generators)
        self.drafter.observe(draft_state, state.reading)
        decided = self._first(logits, requests)
        requests.extend(decided)
        timer = PhaseTimer(backbone.device)
        while True:
            rows = requests.survivors()
            if not requests.active:
                return requests.finished()
            if rows is not None:
                state.select_rows(rows)
                self.drafter.select_rows(draft_state, rows)
                decided = [decided[row] for row in rows]
            self.drafter.commit(draft_state, decided)
            roots = requests.roots
            tree = self.drafter.propose(draft_state, self.block_size, timer)
            with timer("verify"):
                tokens = torch.cat(
                    [torch.tensor(roots, device=tree.tokens.device)[:, None], tree.tokens], dim=1
                )
                logits = self.verifier.run(state, tokens, tree)
            paths, bonus = self._accept(tree, logits, requests)
            self.verifier.keep(state, paths)
            with timer("draft"):
                self.drafter.observe(draft_state, state.reading)
            drafted = tree.tokens.tolist()
            decided = [
                [*(row[node] for node in path), b] for row, path, b in zip(drafted, paths, bonus, strict=True)
            ]
            kept = requests.extend(decided)
            self._record(requests, tree, drafted, roots, paths, bonus, kept, timer.lap())

    def _first(self, logits: Tensor, requests: Requests) -> list[list[int]]:
        if self.sampling.is_greedy:
            return [[token] for token in logits.argmax(-1).tolist()]
        probabilities = self.sampling.probabilities(logits)
        return [[draw(row, g)] for row, g in zip(probabilities, requests.generators, strict=True)]

    def _accept(
        self, tree: TokenTree, logits: Tensor, requests: Requests
    ) -> tuple[list[list[int]], list[int]]:
        """Accepted paths and bonus tokens of the rows."""
        if self.is_lossy:
            width = tree.tokens.shape[1]
            chain = torch.arange(width).sub(1).expand(len(tree.tokens), -1)
            parents = (chain if tree.parents is None else tree.parents).tolist()
            lengths = tree.lengths or [width] * len(parents)
            typical = [
                accept_typical(row[:n], above[:n], logits[i, : n + 1], self.sampling)
                for i, (row, above, n) in enumerate(zip(tree.tokens.tolist(), parents, lengths, strict=True))
            ]
            return [path for path, _ in typical], [token for _, token in typical]
        if tree.parents is None:
            lengths, bonus = self._accept_chains(tree, logits, requests)
            return [list(range(length)) for length in lengths], bonus
        rows = list(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True))
        if self.sampling.is_greedy:
            best = logits.argmax(-1).tolist()
            found = [accept_tree_greedy(*row, choice) for row, choice in zip(rows, best, strict=True)]
        else:
            proposals = [None] * len(rows) if tree.probabilities is None else tree.probabilities
            found = [
                accept_tree_sampled(*row, logits[i], proposals[i], self.sampling, requests.generators[index])
                for i, (row, index) in enumerate(zip(rows, requests.active, strict=True))
            ]
        return [path for path, _ in found], [token for _, token in found]

    def _accept_chains(
        self, tree: TokenTree, logits: Tensor, requests: Requests
    ) -> tuple[list[int], list[int]]:
        """Accepted lengths and bonus tokens of the rows."""
        if self.sampling.is_greedy:
            return accept_greedy(tree.tokens, logits, tree.lengths)
        target = self.sampling.probabilities(logits)
        lengths = tree.lengths or [tree.tokens.shape[1]] * len(target)
        outcomes = [
            accept_sampled(
                tree.tokens[row, :length],
                target[row, : length + 1],
                None if tree.probabilities is None else tree.probabilities[row, :length],
                requests.generators[index],
            )
            for row, (index, length) in enumerate(zip(requests.active, lengths, strict=True))
        ]
        return [a for a, _ in outcomes], [b for _, b in outcomes]

    @staticmethod
    def _record(
        requests: Requests,
        tree: TokenTree,
        drafted: list[list[int]],
        roots: list[int],
        paths: list[list[int]],
        bonus: list[int],
        kept: list[int],
        seconds: dict[str, float],
    ) -> None:
        """Adds a `Round` to every active request; tokens cut off by an end or a limit do not count."""
        parents = None if tree.parents is None else tree.parents.tolist()
        for row, index in enumerate(requests.active):
            accepted = len(paths[row])
            tokens, above = drafted[row], list[int]()
            if tree.lengths is not None:
                tokens = tokens[: tree.lengths[row]]
            if parents is not None:
                tokens, above = path_first(tokens, parents[row], paths[row])
            requests.answers[index].rounds.append(
                Round(
                    tokens,
                    min(accepted, kept[row]),
                    bonus[row] if kept[row] > accepted else -1,
                    roots[row],
                    tree.routes[row] if tree.routes else [],
                    tree.scores[row] if tree.scores else [],
                    seconds,
                    above,
                )
            )
