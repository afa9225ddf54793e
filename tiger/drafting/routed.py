"""TIGER's drafter: a small vision-language model that sees only the routed visual tokens of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs, Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import PhaseTimer
from tiger.drafting.base import Reading, TokenTree
from tiger.drafting.chain import Chain
from tiger.drafting.compiled import ROOM, CompiledSteps
from tiger.drafting.reader import Reader
from tiger.routing.router import Router
from tiger.routing.selectors import ONCE, READS_IMPORTANCE, READS_TEXT, Evidence, SelectorName, select

Layout = Literal["suffix", "inline"]
Query = Literal["visual", "text"]
COLDEST = 0.05  # least draft temperature; drafts are hardly sampled any more


@dataclass
class RoutedState:
    """Requests in flight.

    Attributes:
        inputs: Prompts as the drafter reads them.
        banks: Their visual banks, the global token last.
        keys: W_v V of each bank, computed once.
        sampling: How draft tokens are drawn.
        generators: One generator per request.
        text: Reads the text without routed tokens; gives the routing query. None where no query is needed.
        block: Reads the text with the routed tokens inline (layout `inline` only).
        shown: Bank rows that `block` was read with.
        answers: Decided tokens, the root last.
        chosen: Rows of each bank, where they are chosen once per request.
    """

    inputs: list[ModelInputs]
    banks: list[VisualBank]
    keys: list[Tensor]
    sampling: Sampling
    generators: list[torch.Generator]
    reserve: int
    text: Reader | None = None
    block: Reader | None = None
    shown: list[Tensor] | None = None
    answers: list[list[int]] | None = None
    chosen: list[Tensor] | None = None


class RoutedDrafter(nn.Module):
    """Drafts from K visual tokens chosen anew each round (paper Eq. 5-10).

    Args:
        backbone: The small model.
        selector: Policy that chooses the tokens; `full` shows all of them.
        layout: `suffix` puts routed tokens behind the text, whose keys are then never recomputed; `inline`
            puts them at the image's place and re-reads the prompt when the route changes.
        query: Whether the text that forms the routing query contains the global visual token.
        num_routed: K.
        draft_temperature: Divides the model's logits before drafts are sampled, on top of the temperature
            that the verifier samples with. Below 1 the drafter bets on its likeliest tokens. Output stays
            exact, greedy drafts stay the same.

    Raises:
        ValueError: If a setting is out of range.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        backbone: Backbone,
        selector: SelectorName = "routed",
        layout: Layout = "suffix",
        query: Query = "visual",
        num_routed: int = 8,
        draft_temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if num_routed < 1:
            raise ValueError(
                f"num_routed is {num_routed}; route one visual token or more, or set selector 'full'."
            )
        if draft_temperature < COLDEST:
            raise ValueError(
                f"draft_temperature is {draft_temperature}; it divides, so take {COLDEST} or more."
            )
        for name, value, allowed in (
            ("selector", selector, get_args(SelectorName)),
            ("layout", layout, get_args(Layout)),
            ("query", query, get_args(Query)),
        ):
            if value not in allowed:
                raise ValueError(f"Unknown {name} {value!r}; choose one of {', '.join(allowed)}.")
        self.backbone = backbone
        self.router = Router(backbone.hidden_size)
        self.selector, self.layout, self.query, self.num_routed = selector, layout, query, num_routed
        # Of one element and not none, since FSDP2 shards no scalars. Only alignment has it learn.
        start = torch.tensor([draft_temperature]).log()
        self.log_draft_temperature = nn.Parameter(start, requires_grad=False)
        self.confidence_threshold = 0.0
        self.compiled: CompiledSteps | None = None

    @property
    def draft_temperature(self) -> float:
        """Divides the model's logits before drafts are sampled."""
        return round(float(self._temperature.detach()), 4)

    @property
    def _temperature(self) -> Tensor:
        return self.log_draft_temperature.exp().clamp_min(COLDEST)

    def temper(self, logits: Tensor) -> Tensor:
        """The logits [..., V] that drafts are sampled by, from those of the model."""
        return logits / self._temperature.to(logits.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [..., V] that drafts are sampled by, of hidden states [..., D]."""
        return self.temper(self.backbone.logits(hidden))

    @property
    def viewer(self) -> Backbone:
        """The model whose visual tokens routes count."""
        return self.backbone

    def compile_steps(self) -> None:
        """Drafts with compiled steps from now on; to be called where the drafter is going to run.

        Raises:
            ValueError: If what torch compiles with is missing.
        """
        self.compiled = CompiledSteps(self.backbone)

    @property
    def _multiple(self) -> int:
        """What the size of a cache is a multiple of."""
        return 1 if self.compiled is None else ROOM

    def num_nodes(self, block_size: int) -> int:
        """The tokens of a block."""
        return block_size

    def observe(self, state: RoutedState, reading: Reading) -> None:
        """Takes nothing: the drafter reads with its own model."""

    def context_rows(self, banks: Sequence[VisualBank]) -> list[Tensor]:
        """Bank rows that stand in the text of the routing query: the global token, or none."""
        device = self.backbone.device
        if self.query == "text":
            return [torch.arange(0, device=device) for _ in banks]
        return [torch.arange(max(len(bank) - 1, 0), len(bank), device=device) for bank in banks]

    def encode(self, prompts: Sequence[Prompt]) -> tuple[list[ModelInputs], list[VisualBank]]:
        """Prepares prompts and encodes their images; every bank with tokens gets its global token."""
        inputs = [self.backbone.prepare(prompt) for prompt in prompts]
        banks = self.backbone.encode(inputs, self.selector in READS_IMPORTANCE)
        return inputs, [bank.with_global() if len(bank) else bank for bank in banks]

    def choose(
        self,
        entry: ModelInputs,
        bank: VisualBank,
        scores: Tensor,
        answer: Sequence[int] | Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Chooses the routed rows of one request, in decoding and in training alike.

        Args:
            entry: The prompt.
            bank: Its visual bank.
            scores: Router scores [N].
            answer: Token ids of the answer so far, the root last.
            generator: Source of randomness.

        Returns:
            Ascending bank rows; none for a request without images.
        """
        if not len(bank):
            return torch.arange(0, device=scores.device)
        text = None
        if self.selector in READS_TEXT:
            words = torch.as_tensor(answer, dtype=entry.ids.dtype, device=entry.ids.device)
            text = self.backbone.embed(torch.cat([entry.text_behind, words]))
        return select(self.selector, Evidence(scores, bank, text, generator), self.num_routed)

    def begin(
        self, prompts: Sequence[Prompt], reserve: int, sampling: Sampling, generators: list[torch.Generator]
    ) -> RoutedState:
        """Encodes the images and reads the prompts."""
        inputs, banks = self.encode(prompts)
        keys = [self.router.project(bank.tokens) for bank in banks]
        state = RoutedState(
            inputs, banks, keys, sampling, list(generators), reserve, answers=[[] for _ in prompts]
        )
        if self.selector in ONCE:
            scores = [bank.tokens.new_zeros(len(bank)) for bank in banks]
            rows = zip(inputs, banks, scores, strict=True)
            state.chosen = [self.choose(entry, bank, score, []) for entry, bank, score in rows]
        if self.layout == "suffix" or self.selector == "routed":
            room = reserve + max(map(len, banks)) + 1
            context = self.context_rows(banks)
            state.text, _ = Reader.begin(self.backbone, inputs, banks, context, room, multiple=self._multiple)
        return state

    def commit(self, state: RoutedState, decided: list[list[int]]) -> None:
        """Takes in newly decided tokens."""
        assert state.answers is not None
        state.answers = [old + new for old, new in zip(state.answers, decided, strict=True)]
        for reader in (state.text, state.block):
            if reader is not None:
                reader.append(decided)

    def select_rows(self, state: RoutedState, rows: list[int]) -> None:
        """Keeps the given requests."""
        for name in ("inputs", "banks", "keys", "generators", "answers", "shown", "chosen"):
            if (values := getattr(state, name)) is not None:
                setattr(state, name, [values[row] for row in rows])
        for reader in (state.text, state.block):
            if reader is not None:
                reader.select_rows(rows)

    def propose(self, state: RoutedState, block_size: int, timer: PhaseTimer) -> TokenTree:
        """Routes once, then drafts a chain of `block_size` tokens from the routed context."""
        hidden = None
        if state.text is not None:
            with timer("draft"):
                hidden = state.text.read(self.backbone, keep_root=False)
        with timer("route"):
            rows, scores = self._route(state, hidden)
        with timer("draft"):
            if self.layout == "suffix":
                reader, hidden, opened = self._open_suffix(state, rows)
            else:
                reader, hidden, opened = self._open_inline(state, rows)
            tree = self._draft(state, reader, hidden, block_size)
            reader.commit([1 - tree.tokens.shape[1]] * len(rows))
            if opened:
                reader.cache.commit([-count for count in opened])
                reader.next_positions = [p - 1 for p in reader.next_positions]
        tree.routes = [row.tolist() for row in rows]
        tree.scores = [score[row].tolist() for score, row in zip(scores, rows, strict=True)]
        return tree

    def _route(self, state: RoutedState, hidden: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        """Chosen rows and scores of each request; a text-only request has none."""
        assert state.answers is not None
        rows, scores = [], []
        for index, (entry, bank) in enumerate(zip(state.inputs, state.banks, strict=True)):
            if hidden is not None and len(bank):
                score = self.router(hidden[None, index : index + 1], state.keys[index][None])[0, 0]
            else:
                score = bank.tokens.new_zeros(len(bank))
            scores.append(score)
            if state.chosen is not None:
                rows.append(state.chosen[index])
            else:
                generator = state.generators[index]
                rows.append(self.choose(entry, bank, score, state.answers[index], generator))
        return rows, scores

    def _open_suffix(self, state: RoutedState, rows: list[Tensor]) -> tuple[Reader, Tensor, list[int]]:
        """Reads `[routed tokens, root]` behind the text, to be taken back after the round.

        Returns:
            The reader, the root's hidden state [B, D] and the tokens read per row.
        """
        reader, device = state.text, self.backbone.device
        assert reader is not None
        counts = [len(row) + 1 for row in rows]
        width = max(counts)
        roots = self.backbone.embed(torch.tensor([pending[-1] for pending in reader.pending], device=device))
        # Places behind a row's root repeat it; nobody sees them.
        embeddings = torch.stack(
            [
                torch.cat([bank.tokens[row], root.expand(width - len(row), -1)])
                for row, bank, root in zip(rows, state.banks, roots, strict=True)
            ]
        )
        positions = torch.stack(
            [
                torch.nn.functional.pad(bank.position_ids[:, row], (0, width - len(row)), value=position)
                for row, bank, position in zip(rows, state.banks, reader.next_positions, strict=True)
            ],
            dim=1,
        )
        last = torch.tensor([len(row) for row in rows], device=device)
        visual = torch.arange(width, device=device) < last[:, None]
        layers = range(len(state.banks[0].deepstack))
        deepstack = [
            torch.cat([b.deepstack[i][r] for b, r in zip(state.banks, rows, strict=True)]) for i in layers
        ]
        reader.cache.require(width)
        mask = reader.cache.mask(width)
        hidden = self.backbone.run(embeddings, positions, mask, reader.cache, visual, deepstack)
        reader.cache.commit(counts)
        reader.next_positions = [p + 1 for p in reader.next_positions]
        return reader, hidden[torch.arange(len(rows), device=device), last], counts

    def _open_inline(self, state: RoutedState, rows: list[Tensor]) -> tuple[Reader, Tensor, list[int]]:
        """Reads up to the root with the routed tokens at the image's place."""
        assert state.answers is not None
        same = state.shown is not None and all(map(torch.equal, state.shown, rows))
        if same and state.block is not None:
            hidden = state.block.read(self.backbone, keep_root=True)
        else:
            answers = state.answers
            state.block, hidden = Reader.begin(
                self.backbone, state.inputs, state.banks, rows, state.reserve, answers, self._multiple
            )
            state.shown = rows
        return state.block, hidden, []

    def _draft(self, state: RoutedState, reader: Reader, hidden: Tensor, block_size: int) -> TokenTree:
        """Draws a chain token by token; `reader` stands behind the root."""
        threshold = self.confidence_threshold
        chain = Chain(state.sampling, state.generators, self.temper, block_size, threshold)
        if self.compiled is None:
            read = reader.chain(self.backbone, block_size - 1)
        else:
            read = self.compiled.chain(reader, block_size - 1)
        while True:
            chosen = chain.write(self.backbone.logits(hidden))
            if chain.has_ended:
                return chain.tree()
            hidden = read(chosen)
