"""One token per pass: the baseline of every speedup, and the decoding of pruned verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tiger.backbones.base import Backbone, ModelInputs, Prompt
from tiger.decoding.acceptance import Sampling, draw
from tiger.decoding.records import Generation
from tiger.decoding.requests import Listener, Requests
from tiger.decoding.verifier import Verifier


@runtime_checkable
class Reads(Protocol):
    """Reads prompts and tokens: the verifier, or one that reads fewer visual tokens. See `Verifier`."""

    backbone: Backbone

    def prefill(self, inputs: Sequence[ModelInputs], reserve: int) -> tuple[Any, Tensor]:
        """Reads prompts; gives a state and the logits [B, V] of the first tokens."""

    def run(self, state: Any, tokens: Tensor) -> Tensor:
        """Reads tokens [B, M]; gives their logits [B, M, V]."""

    def commit(self, state: Any, counts: list[int]) -> None:
        """Keeps the first tokens of the last pass, one count per row."""


class AutoregressiveDecoder:
    """The verifier's own decoding on the same cache as the speculative decoder.

    Args:
        verifier: The verifier's backbone, or a pruned verifier.
        max_new_tokens: Longest answer, tokens.
        sampling: How tokens are drawn.
        seed: Seed; each request's generator is derived from it and the prompt's id.
    """

    def __init__(
        self,
        verifier: Backbone | Reads,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> None:
        self.verifier: Reads = Verifier(verifier) if isinstance(verifier, Backbone) else verifier
        self.max_new_tokens = max_new_tokens
        self.sampling = sampling or Sampling()
        self.seed = seed

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], listener: Listener | None = None) -> list[Generation]:
        """Answers a batch of prompts.

        Args:
            prompts: B requests.
            listener: Called with the request's index and its new tokens.

        Returns:
            One generation per prompt, in order.
        """
        requests = Requests(prompts, self.verifier.backbone, self.max_new_tokens, self.seed, listener)
        state, logits = self.verifier.prefill(requests.inputs, reserve=max(requests.limits))
        requests.extend([[token] for token in self._choose(logits, requests)])
        while True:
            rows = requests.survivors()
            if not requests.active:
                return requests.finished()
            if rows is not None:
                state.select_rows(rows)
            roots = torch.tensor(requests.roots, device=logits.device)[:, None]
            logits = self.verifier.run(state, roots)[:, 0]
            self.verifier.commit(state, [1] * len(requests.active))
            requests.extend([[token] for token in self._choose(logits, requests)])

    def _choose(self, logits: torch.Tensor, requests: Requests) -> list[int]:
        if self.sampling.is_greedy:
            return list(map(int, logits.argmax(-1).tolist()))
        probabilities = self.sampling.probabilities(logits)
        return [
            draw(row, requests.generators[i]) for row, i in zip(probabilities, requests.active, strict=True)
        ]
