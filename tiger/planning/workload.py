"""How many tokens of which kind a training step or a decoding round reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Pass(NamedTuple):
    """One run of a language model.

    Attributes:
        rows: Rows of the batch.
        queries: Tokens read per row.
        keys: Tokens that each of them may attend to, themselves included.
        gated: Whether the attention mask carries the router's gradient.
    """

    rows: int
    queries: int
    keys: int
    gated: bool = False


@dataclass(frozen=True)
class Workload:
    """Sizes of a step.

    Attributes:
        batch: Examples B, or requests while decoding.
        prompt_tokens: Text tokens of a prompt.
        visual_tokens: Visual tokens N of a prompt.
        answer_tokens: Answer tokens R.
        num_anchors: Blocks per answer.
        group: Sampled blocks per anchor; 1 in KD.
        block_size: Tokens S of a block.
        num_routed: K; N for a drafter that sees everything.
        layout: Where the drafter's routed tokens stand.
        routed: Whether the router chooses them and learns.
        rollout_chunk: Tokens of each branch that the verifier judges at once; None whole blocks.
    """

    batch: int
    prompt_tokens: int
    visual_tokens: int
    answer_tokens: int
    num_anchors: int = 1
    group: int = 1
    block_size: int = 8
    num_routed: int = 8
    layout: str = "suffix"
    routed: bool = True
    rollout_chunk: int | None = None

    @property
    def sequence(self) -> int:
        """Tokens of prompt and answer as the verifier reads them."""
        return self.prompt_tokens + self.visual_tokens + self.answer_tokens

    @property
    def scored(self) -> int:
        """Block tokens of a step, B x anchors x G x S."""
        return self.batch * self.num_anchors * self.group * self.block_size

    @property
    def judged(self) -> int:
        """Block tokens that the verifier judges at once, B x anchors x G x min(chunk, S)."""
        return self.scored // self.block_size * min(self.rollout_chunk or self.block_size, self.block_size)

    @property
    def routed_tokens(self) -> int:
        """Routed tokens per anchor, min(K, N + 1)."""
        return min(self.num_routed, self.visual_tokens + 1)

    def drafter_passes(self) -> list[Pass]:
        """The drafter's passes with gradients.

        `suffix`: the text with the global token, [K routed, root] of every anchor, then S - 1 tokens of every
        branch, each attending to all that came before. `inline`: the text, then one row per branch, as
        long as that of the last anchor.
        """
        text = self.prompt_tokens + 1 + self.answer_tokens
        branches = self.num_anchors * self.group
        if self.layout == "inline":
            row = self.prompt_tokens + self.routed_tokens + self.answer_tokens + self.block_size - 1
            return [Pass(self.batch, text, text), Pass(self.batch * branches, row, row, self.routed)]
        opened = self.num_anchors * (self.routed_tokens + 1)
        drafted = branches * (self.block_size - 1)
        return [
            Pass(self.batch, text, text),
            Pass(self.batch, opened, text + opened, self.routed),
            Pass(self.batch, drafted, text + opened + drafted, self.routed),
        ]

    def sampling_passes(self) -> list[Pass]:
        """The drafter's passes that draw blocks token by token behind the text.

        `suffix`: the routed contexts, then one token of every branch at a time. `inline`: all rows from the
        beginning for every token.
        """
        _, *opened, last = self.drafter_passes()
        if self.layout == "inline":
            return [
                last._replace(queries=n, keys=n)
                for n in range(last.keys - self.block_size + 1, last.keys + 1)
            ]
        branches = self.num_anchors * self.group
        past = last.keys - last.queries
        return [
            *opened,
            *(Pass(self.batch, branches, past + branches * n) for n in range(1, self.block_size)),
        ]

    def verifier_passes(self, judge_blocks: bool) -> list[Pass]:
        """The verifier's passes: prompt and answer, then, in alignment, a chunk of every branch at a time.

        Of the first chunk one token less is read, since the root's state is there.
        """
        passes = [Pass(self.batch, self.sequence, self.sequence)]
        if judge_blocks:
            branches, size = self.num_anchors * self.group, self.block_size
            chunk = self.rollout_chunk or size
            ends = [min(start + chunk, size) - 1 for start in range(0, size, chunk)]
            for before, end in pairwise([0, *ends]):
                passes.append(Pass(self.batch, branches * (end - before), self.sequence + branches * end))
        return passes
