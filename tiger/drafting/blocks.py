"""Scores or samples many blocks of many anchors in one pass, for training.

The text of a row is read once. Each anchor then opens a routed context `[K routed tokens, root]` that sees
the text before its root, and G branches of block tokens continue it without seeing one another. With the
`inline` layout every branch is a row of its own, because the text's keys depend on the route.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from tiger.backbones.base import ModelInputs, VisualBank, assemble
from tiger.drafting.routed import RoutedDrafter
from tiger.routing.selectors import select


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


def route(drafter: RoutedDrafter, texts: Texts, anchors: Tensor) -> Routes:
    """Routes once for every anchor.

    Args:
        drafter: The drafter.
        texts: The texts.
        anchors: Index of each root in its answer [B, A].
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
    chosen = [
        [
            select(drafter.selector, ranking[b, a, : len(bank)], bank.tokens, drafter.num_routed)
            if len(bank)
            else anchors.new_zeros(0)
            for a in range(anchors.shape[1])
        ]
        for b, bank in enumerate(texts.banks)
    ]
    width = max(len(row) for rows in chosen for row in rows)
    shape = (*anchors.shape, width)
    rows, valid = anchors.new_zeros(shape), torch.zeros(shape, dtype=torch.bool, device=anchors.device)
    for b, per_row in enumerate(chosen):
        for a, row in enumerate(per_row):
            rows[b, a, : len(row)], valid[b, a, : len(row)] = row, True
    return Routes(anchors, rows, valid, scores)


class SuffixBlocks:
    """Blocks behind a shared text: columns `[A x (K routed + root)]`, then `[A x G x tokens]`.

    Args:
        drafter: The drafter.
        texts: The texts.
        routes: The routes of the anchors.
        group: Branches G per anchor.
    """

    def __init__(self, drafter: RoutedDrafter, texts: Texts, routes: Routes, group: int) -> None:
        self.drafter, self.texts, self.routes, self.group = drafter, texts, routes, group
        self.cache = copy.copy(texts.cache)
        self.cache.layers = [copy.copy(layer) for layer in texts.cache.layers]
        batch, num_anchors, self.num_routed = routes.rows.shape
        device = routes.rows.device
        self.roots = texts.answers.gather(1, routes.anchors)
        anchor = torch.arange(num_anchors, device=device).repeat_interleave(self.num_routed + 1)
        order = torch.arange(self.num_routed + 1, device=device).repeat(num_anchors)
        self.anchor, self.order, self.branch = anchor, order, torch.full_like(anchor, -1)
        ones = torch.ones(batch, num_anchors, 1, dtype=torch.bool, device=device)
        self.valid = torch.cat([routes.valid, ones], dim=2).flatten(1)
        zeros = torch.zeros(batch, num_anchors, 1, device=device)
        self.gate = torch.cat([routes.gate, zeros], dim=2).flatten(1)
        self.visible_text = (
            torch.arange(texts.hidden.shape[1], device=device)
            < (texts.starts[:, None] + routes.anchors)[..., None]
        )

    def open(self) -> Tensor:
        """Reads the routed contexts; hidden states of the roots [B, A, D]."""
        texts, routes, backbone = self.texts, self.routes, self.drafter.backbone
        batch, num_anchors, count = routes.rows.shape
        flat = routes.rows.flatten(1)
        routed = texts.bank.gather(1, flat[..., None].expand(-1, -1, texts.bank.shape[-1]))
        embeddings = torch.cat(
            [routed.unflatten(1, (num_anchors, count)), backbone.embed(self.roots)[:, :, None]], dim=2
        )
        positions = texts.bank_positions.gather(2, flat.expand(texts.bank_positions.shape[0], -1, -1))
        root_positions = (texts.next_positions[:, None] + routes.anchors).expand(len(positions), -1, -1)
        positions = torch.cat(
            [positions.unflatten(2, (num_anchors, count)), root_positions[..., None]], dim=3
        )
        visual = torch.nn.functional.pad(routes.valid, (0, 1)).flatten(1)
        deepstack = [
            rows.gather(1, flat[..., None].expand(-1, -1, rows.shape[-1]))[routes.valid.flatten(1)]
            for rows in texts.deepstack
        ]
        mask = self._mask(self.anchor, self.branch, self.order)
        hidden = backbone.run(
            embeddings.flatten(1, 2), positions.flatten(2), mask, self.cache, visual, deepstack
        )
        return hidden.view(batch, num_anchors, count + 1, -1)[:, :, -1]

    def extend(self, tokens: Tensor, depth: int) -> Tensor:
        """Reads tokens [B, A, G, S] at distance `depth` and on from their roots; hidden [B, A, G, S, D]."""
        batch, num_anchors, group, count = tokens.shape
        device = tokens.device
        branches = torch.arange(num_anchors * group, device=device).repeat_interleave(count)
        anchor = branches // group
        steps = torch.arange(count, device=device) + depth
        order = self.num_routed + steps.repeat(num_anchors * group)
        self.anchor, self.branch = torch.cat([self.anchor, anchor]), torch.cat([self.branch, branches])
        self.order = torch.cat([self.order, order])
        width = tokens[0].numel()
        self.valid = torch.nn.functional.pad(self.valid, (0, width), value=True)
        self.gate = torch.nn.functional.pad(self.gate, (0, width))
        start = (self.texts.next_positions[:, None] + self.routes.anchors)[:, :, None, None]
        positions = (start + steps).expand(batch, num_anchors, group, count).flatten(1)
        backbone = self.drafter.backbone
        hidden = backbone.run(
            backbone.embed(tokens.flatten(1)),
            positions.expand(backbone.num_axes, -1, -1),
            self._mask(anchor, branches, order),
            self.cache,
        )
        return hidden.view(batch, num_anchors, group, count, -1)

    def _mask(self, anchor: Tensor, branch: Tensor, order: Tensor) -> Tensor:
        """Additive mask [B, 1, Q, T + C] of new columns over the text and all columns so far."""
        same = (anchor[:, None] == self.anchor) & (order[:, None] >= self.order)
        same &= (self.branch == -1) | (branch[:, None] == self.branch)
        among = same & self.valid[:, None]
        own = (
            (anchor[:, None] == self.anchor)
            & (branch[:, None] == self.branch)
            & (order[:, None] == self.order)
        )
        visible = torch.cat([self.visible_text[:, anchor], among | own], dim=2)
        dtype = self.texts.hidden.dtype
        bias = torch.zeros(visible.shape, dtype=dtype, device=same.device)
        bias = bias.masked_fill(~visible, torch.finfo(dtype).min)
        if torch.is_grad_enabled() and self.gate.requires_grad:
            text_query = (order >= self.num_routed).to(dtype)[:, None]
            gate = torch.nn.functional.pad(self.gate, (self.visible_text.shape[2], 0)).to(dtype)
            bias = bias + gate[:, None] * text_query
        return bias[:, None]


def read_blocks(drafter: RoutedDrafter, texts: Texts, routes: Routes, blocks: Tensor) -> Tensor:
    """The drafter's hidden states for given blocks.

    Args:
        drafter: The drafter.
        texts: The texts.
        routes: The routes of the anchors.
        blocks: Drafted tokens [B, A, G, S].

    Returns:
        Hidden states [B, A, G, S, D]; entry u gives the distribution that token u is drawn from.
    """
    if drafter.layout == "inline":
        return _read_inline(drafter, texts, routes, blocks)
    reader = SuffixBlocks(drafter, texts, routes, blocks.shape[2])
    hidden = reader.open()[:, :, None, None].expand(-1, -1, blocks.shape[2], -1, -1)
    if blocks.shape[3] > 1:
        hidden = torch.cat([hidden, reader.extend(blocks[..., :-1], 1)], dim=3)
    return hidden


def score_blocks(drafter: RoutedDrafter, texts: Texts, routes: Routes, blocks: Tensor) -> Tensor:
    """The drafter's logits [B, A, G, S, V] for given blocks, see `read_blocks`."""
    return drafter.backbone.logits(read_blocks(drafter, texts, routes, blocks))


@torch.no_grad()
def sample_blocks(
    drafter: RoutedDrafter,
    texts: Texts,
    routes: Routes,
    group: int,
    block_size: int,
    temperature: float,
    generators: Sequence[torch.Generator] | None = None,
) -> Tensor:
    """Draws G blocks per anchor from the drafter (paper Eq. 11).

    Args:
        drafter: The drafter.
        texts: The texts.
        routes: The routes of the anchors.
        group: Blocks G per anchor.
        block_size: Tokens per block.
        temperature: Sampling temperature, above 0.
        generators: Sources of randomness, one per row.

    Returns:
        Tokens [B, A, G, S].
    """
    reader = SuffixBlocks(drafter, texts, routes, group) if drafter.layout == "suffix" else None
    hidden = reader.open()[:, :, None].expand(-1, -1, group, -1) if reader else None
    blocks = routes.anchors.new_zeros(*routes.anchors.shape, group, 0)
    sources: Sequence[torch.Generator | None] = generators or [None] * len(blocks)
    for step in range(block_size):
        if hidden is None:
            probe = torch.nn.functional.pad(blocks, (0, 1))
            logits = drafter.backbone.logits(_read_inline(drafter, texts, routes, probe)[:, :, :, -1])
        else:
            logits = drafter.backbone.logits(hidden)
        probabilities = (logits.float() / temperature).softmax(-1)
        noise = [
            torch.empty_like(p).exponential_(generator=g) for p, g in zip(probabilities, sources, strict=True)
        ]
        blocks = torch.cat([blocks, (probabilities / torch.stack(noise)).argmax(-1)[..., None]], dim=3)
        if reader is not None and step < block_size - 1:
            hidden = reader.extend(blocks[..., -1:], step + 1)[:, :, :, 0]
    return blocks


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
        scores = torch.nn.functional.pad(scores, (0, 1))  # a batch without images has no row 0 otherwise
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
