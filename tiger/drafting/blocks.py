"""Scores or samples many blocks of many anchors in one pass, for training.

The text of a row is read once. Each anchor then opens a routed context `[K routed tokens, root]` that sees
the text before its root, and G branches of block tokens continue it without seeing one another. With the
`inline` layout every branch is a row of its own, because the text's keys depend on the route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import ModelInputs, assemble
from tiger.backbones.branches import Branches, additive, fork
from tiger.drafting.routed import RoutedDrafter
from tiger.routing.selectors import ONCE


@dataclass
class Texts:
    """Prompts and answers as the drafter reads them, without routed tokens.

    Attributes:
        inputs: The prompts.
        banks: Their visual banks, the global token last.
        answers: Answer token ids [B, R], padded with 0.
        hidden: Hidden states [B, T, D].
        cache: Keys and values of the text, with their gradients.
        starts: Column of the first answer token in each row [B].
        bank: Bank tokens [B, N, D], padded.
        bank_positions: Positions [A, B, N].
        bank_sizes: Rows of each bank [B].
        deepstack: Rows [B, N, D] per deepstack layer.
    """

    inputs: list[ModelInputs]
    banks: list[VisualBank]
    answers: Tensor
    hidden: Tensor
    cache: DynamicCache
    starts: Tensor
    bank: Tensor
    bank_positions: Tensor
    bank_sizes: Tensor
    deepstack: list[Tensor]

    @property
    def next_positions(self) -> Tensor:
        """Position of the first answer token of each row [B]."""
        return torch.tensor([entry.next_position for entry in self.inputs], device=self.hidden.device)


@dataclass
class Routes:
    """Routed tokens of every anchor.

    Attributes:
        anchors: Index of each root in its answer [B, A].
        rows: Chosen bank rows [B, A, K], ascending; padded with row 0.
        valid: Which of them exist [B, A, K].
        scores: Router scores [B, A, N], -inf behind the end of a bank.
    """

    anchors: Tensor
    rows: Tensor
    valid: Tensor
    scores: Tensor

    @property
    def gate(self) -> Tensor:
        """Straight-through gate [B, A, K]: zero in value, the chosen scores in gradient.

        It enters as a bias on attention logits towards the routed tokens. A scale on their embeddings would
        be cancelled by the RMS norm.
        """
        chosen = self.scores.gather(2, self.rows).masked_fill(~self.valid, 0.0)
        return chosen - chosen.detach()


def read_texts(
    drafter: RoutedDrafter, inputs: list[ModelInputs], banks: list[VisualBank], answers: Sequence[Tensor]
) -> Texts:
    """Reads prompts and whole answers once, with the context of the routing query.

    Args:
        drafter: The drafter.
        inputs: Prompts as `drafter.encode` prepared them.
        banks: Their banks.
        answers: Answer token ids, one [R] per row.
    """
    backbone = drafter.backbone
    suffixes = [backbone.embed(answer) for answer in answers]
    texts = [backbone.embed(entry.ids) for entry in inputs]
    batch = assemble(inputs, banks, texts, drafter.context_rows(banks), suffixes)
    cache = DynamicCache(config=backbone.model.config)
    hidden = backbone.run_assembled(batch, cache)
    sizes = torch.tensor([len(answer) for answer in answers], device=hidden.device)
    pad = torch.nn.utils.rnn.pad_sequence
    return Texts(
        inputs=inputs,
        banks=banks,
        answers=pad(list(answers), batch_first=True),
        hidden=hidden,
        cache=cache,
        starts=torch.tensor(batch.lengths, device=hidden.device) - sizes,
        bank=pad([bank.tokens for bank in banks], batch_first=True),
        bank_positions=pad([bank.position_ids.T for bank in banks], batch_first=True).permute(2, 0, 1),
        bank_sizes=torch.tensor([len(bank) for bank in banks], device=hidden.device),
        deepstack=[
            pad([bank.deepstack[i] for bank in banks], batch_first=True)
            for i in range(len(banks[0].deepstack))
        ],
    )


def route(
    drafter: RoutedDrafter,
    texts: Texts,
    anchors: Tensor,
    generators: Sequence[torch.Generator] | None = None,
) -> Routes:
    """Routes once for every anchor.

    Args:
        drafter: The drafter.
        texts: The texts.
        anchors: Index of each root in its answer [B, A].
        generators: Randomness of each row for the `random` selector; by default torch's global generator.
    """
    columns = texts.starts[:, None] + anchors
    query = texts.hidden.gather(1, columns[..., None].expand(-1, -1, texts.hidden.shape[-1]))
    outside = torch.arange(texts.bank.shape[1], device=query.device) >= texts.bank_sizes[:, None]
    scores = drafter.router(query, drafter.router.project(texts.bank))
    scores = scores.float().masked_fill(outside[:, None], float("-inf"))
    ranking = scores.detach()
    if drafter.selector == "routed":
        count = min(drafter.num_routed, scores.shape[-1])
        rows = ranking.topk(count, dim=-1).indices.sort(-1).values
        return Routes(anchors, rows, scores.gather(2, rows) > float("-inf"), scores)
    sources: Sequence[torch.Generator | None] = generators or [None] * len(texts.banks)
    chosen = [
        _choices(drafter, texts, row, anchors[row].tolist(), ranking[row], source)
        for row, source in enumerate(sources)
    ]
    width = max(len(row) for rows in chosen for row in rows)
    shape = (*anchors.shape, width)
    rows, valid = anchors.new_zeros(shape), torch.zeros(shape, dtype=torch.bool, device=anchors.device)
    for b, per_row in enumerate(chosen):
        for a, row in enumerate(per_row):
            rows[b, a, : len(row)], valid[b, a, : len(row)] = row, True
    return Routes(anchors, rows, valid, scores)


def _choices(
    drafter: RoutedDrafter,
    texts: Texts,
    row: int,
    anchors: list[int],
    ranking: Tensor,
    generator: torch.Generator | None,
) -> list[Tensor]:
    """Bank rows of each anchor of one row with scores `ranking` [A, N], chosen as decoding does."""
    entry, bank, answer = texts.inputs[row], texts.banks[row], texts.answers[row]

    def choose(index: int) -> Tensor:
        seen, scores = answer[: anchors[index] + 1], ranking[index, : len(bank)]
        return drafter.choose(entry, bank, scores, seen, generator)

    if drafter.selector in ONCE:
        return [choose(0)] * len(anchors)
    return [choose(index) for index in range(len(anchors))]


def open_blocks(drafter: RoutedDrafter, texts: Texts, routes: Routes, group: int) -> Branches:
    """Reads the routed contexts `[K routed tokens, root]` of the `suffix` layout behind the shared texts.

    Args:
        drafter: The drafter.
        texts: The texts.
        routes: The routes of the anchors.
        group: Branches G per anchor.

    Returns:
        The branches behind the roots.
    """
    backbone = drafter.backbone
    batch, num_anchors, count = routes.rows.shape
    flat = routes.rows.flatten(1)
    routed = texts.bank.gather(1, flat[..., None].expand(-1, -1, texts.bank.shape[-1]))
    roots = backbone.embed(texts.answers.gather(1, routes.anchors))
    embeddings = torch.cat([routed.unflatten(1, (num_anchors, count)), roots[:, :, None]], dim=2)
    positions = texts.bank_positions.gather(2, flat.expand(texts.bank_positions.shape[0], -1, -1))
    root_positions = texts.next_positions[:, None] + routes.anchors
    positions = torch.cat(
        [
            positions.unflatten(2, (num_anchors, count)),
            root_positions.expand(len(positions), -1, -1)[..., None],
        ],
        dim=3,
    )
    visual = F.pad(routes.valid, (0, 1)).flatten(1)
    deepstack = [
        rows.gather(1, flat[..., None].expand(-1, -1, rows.shape[-1]))[routes.valid.flatten(1)]
        for rows in texts.deepstack
    ]
    mask, cache = _context_mask(texts, routes), fork(texts.cache)
    hidden = backbone.run(
        embeddings.flatten(1, 2), positions.flatten(2), mask[:, None], cache, visual, deepstack
    )
    last = [value.view(batch, num_anchors, count + 1, -1)[:, :, -1] for value in (hidden, mask)]
    return Branches(backbone, cache, last[0], root_positions, last[1], group)


def _context_mask(texts: Texts, routes: Routes) -> Tensor:
    """Additive mask [B, Q, T + Q] of the routed contexts, Q = A * (K + 1), with the gate at the roots."""
    num_anchors, count = routes.rows.shape[1:]
    device = routes.rows.device
    anchor = torch.arange(num_anchors, device=device).repeat_interleave(count + 1)
    order = torch.arange(count + 1, device=device).repeat(num_anchors)
    own = (anchor[:, None] == anchor) & (order[:, None] >= order)
    among = own & F.pad(routes.valid, (0, 1), value=True).flatten(1)[:, None]
    among |= torch.eye(len(anchor), dtype=torch.bool, device=device)
    text = (
        torch.arange(texts.hidden.shape[1], device=device)
        < (texts.starts[:, None] + routes.anchors)[..., None]
    )
    bias = additive(torch.cat([text[:, anchor], among], dim=2), texts.hidden.dtype)
    if torch.is_grad_enabled() and routes.scores.requires_grad:
        gate = F.pad(F.pad(routes.gate, (0, 1)).flatten(1), (text.shape[2], 0)).to(bias.dtype)
        bias = bias + gate[:, None] * (order == count)[:, None]
    return bias


def read_blocks(
    drafter: RoutedDrafter, texts: Texts, routes: Routes, blocks: Tensor, wanted: Tensor | None = None
) -> Tensor:
    """The drafter's hidden states for given blocks.

    Args:
        drafter: The drafter.
        texts: The texts.
        routes: The routes of the anchors.
        blocks: Drafted tokens [B, A, G, S].
        wanted: Beginning of each block that is asked for [B, A, G, S]; all of it by default.

    Returns:
        Hidden states [B, A, G, S, D]; entry u gives the distribution that token u is drawn from. What was not
        wanted is arbitrary.
    """
    if drafter.layout == "inline":
        return _read_inline(drafter, texts, routes, blocks)
    wanted = torch.ones_like(blocks, dtype=torch.bool) if wanted is None else wanted
    reader = open_blocks(drafter, texts, routes, blocks.shape[2])
    return reader.states(blocks.flatten(1, 2), 0, wanted.flatten(1, 2)).unflatten(1, blocks.shape[1:3])


def score_blocks(drafter: RoutedDrafter, texts: Texts, routes: Routes, blocks: Tensor) -> Tensor:
    """The drafter's logits [B, A, G, S, V] for given blocks, see `read_blocks`."""
    return drafter.logits(read_blocks(drafter, texts, routes, blocks))


class Sampler:
    """Draws G blocks per anchor from the drafter (paper Eq. 11), as far as each is wanted.

    Args:
        drafter: The drafter.
        texts: The texts.
        routes: The routes of the anchors.
        uniform: Random numbers in [0, 1) that decide the tokens [B, A, G, S]. Each token has its own, so that
            a block does not depend on when it is drawn, or which others are.
        temperature: Sampling temperature, above 0.

    Attributes:
        blocks: Tokens [B, A * G, S] drawn so far, 0 elsewhere.
        log_q: Their log-probabilities.
    """

    @torch.no_grad()
    def __init__(
        self, drafter: RoutedDrafter, texts: Texts, routes: Routes, uniform: Tensor, temperature: float
    ) -> None:
        self.drafter, self.texts, self.routes, self.temperature = drafter, texts, routes, temperature
        self.shape, self.uniform = uniform.shape, uniform.flatten(1, 2)
        self.blocks = torch.zeros_like(self.uniform, dtype=torch.long)
        self.log_q = torch.zeros_like(self.uniform)
        suffix = drafter.layout == "suffix"
        self.reader = open_blocks(drafter, texts, routes, uniform.shape[2]) if suffix else None

    @torch.no_grad()
    def draw(self, step: int, wanted: Tensor) -> None:
        """Draws token `step` of the wanted branches [B, A * G]; the tokens before it must have been drawn."""
        if self.reader is not None:
            hidden = self.reader.states(self.blocks, step, wanted[..., None])[:, :, 0]
        else:
            probe = self.blocks.view(self.shape)[..., : step + 1]
            hidden = _read_inline(self.drafter, self.texts, self.routes, probe)[:, :, :, -1].flatten(1, 2)
        logits = self.drafter.logits(hidden[wanted]).float() / self.temperature
        log_q = logits.log_softmax(-1)
        # In double precision, so that the last tokens of a large vocabulary keep their share.
        total = log_q.double().exp().cumsum(-1)
        point = self.uniform[..., step][wanted][:, None].double() * total[:, -1:]
        token = torch.searchsorted(total, point, right=True)
        self.blocks[..., step][wanted] = token[:, 0]
        self.log_q[..., step][wanted] = log_q.gather(-1, token)[:, 0]


def _read_inline(drafter: RoutedDrafter, texts: Texts, routes: Routes, blocks: Tensor) -> Tensor:
    """Hidden states [B, A, G, S, D] with the routed tokens at the image's place, one row per branch."""
    backbone = drafter.backbone
    batch, num_anchors, group, count = blocks.shape
    index = [(b, a, g) for b in range(batch) for a in range(num_anchors) for g in range(group)]
    embedded = [backbone.embed(entry.ids) for entry in texts.inputs]
    suffixes = [
        backbone.embed(torch.cat([texts.answers[b, : int(routes.anchors[b, a]) + 1], blocks[b, a, g, :-1]]))
        for b, a, g in index
    ]
    rows = [routes.rows[b, a][routes.valid[b, a]] for b, a, _ in index]
    assembled = assemble(
        [texts.inputs[b] for b, _, _ in index],
        [texts.banks[b] for b, _, _ in index],
        [embedded[b] for b, _, _ in index],
        rows,
        suffixes,
    )
    length = assembled.embeddings.shape[1]
    minimum = torch.finfo(assembled.embeddings.dtype).min
    causal = torch.full((length, length), minimum, device=blocks.device).triu(1)
    bias = causal.expand(len(index), -1, -1)
    if torch.is_grad_enabled() and routes.scores.requires_grad:
        scores = torch.stack([routes.scores[b, a] for b, a, _ in index])
        scores = F.pad(scores, (0, 1))  # a batch without images has no row 0 otherwise
        chosen = scores.gather(1, assembled.bank_rows.clamp_min(0)).masked_fill(~assembled.visual, 0.0)
        text_query = (~assembled.visual).float()[:, :, None]
        bias = bias + (chosen - chosen.detach())[:, None] * text_query
    hidden = backbone.run(
        assembled.embeddings,
        assembled.position_ids,
        bias[:, None].to(assembled.embeddings.dtype),
        None,
        assembled.visual,
        assembled.deepstack,
    )
    ends = torch.tensor(assembled.lengths, device=hidden.device)
    columns = ends[:, None] - count + torch.arange(count, device=hidden.device)
    picked = hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[-1]))
    return picked.view(batch, num_anchors, group, count, -1)
