"""SparseVLM (arXiv 2410.04417): visual tokens leave the verifier's language model on the way. Lossy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Assembled, Backbone, ModelInputs, assemble
from tiger.backbones.cache import BlockCache
from tiger.backbones.layers import layer_attention, run_layers
from tiger.routing.pruning import check_shares, kept_of, text_raters

LAYERS, DEPTH = (2, 6, 15), 32  # tokens leave behind these layers of a model of that depth
PUBLISHED = (300 / 576, 200 / 576, 118 / 576)  # 192 of 576 on average


@dataclass
class SparseState:
    """Requests in flight.

    Attributes:
        caches: A cache for each run of layers, with lengths of its own.
        whole: All their layers, as the model indexes them.
        next_positions: Position of the next token of each request.
    """

    caches: list[BlockCache]
    whole: Cache
    next_positions: list[int]

    def select_rows(self, rows: list[int]) -> None:
        """Keeps the given requests."""
        for cache in self.caches:
            cache.select_rows(rows)
        self.next_positions = [self.next_positions[row] for row in rows]


@dataclass
class Front:
    """What the next layer reads of the prompts, right-padded.

    Attributes:
        hidden: Hidden states [B, T, D].
        position_ids: [A, B, T].
        lengths: Valid tokens of each row.
        visual: Bool mask [B, T] of visual tokens.
        raters: Bool mask [B, T] of the words that rate them.
        deepstack: Rows [number of visual tokens, D] per deepstack layer.
    """

    hidden: Tensor
    position_ids: Tensor
    lengths: list[int]
    visual: Tensor
    raters: Tensor
    deepstack: tuple[Tensor, ...]

    @property
    def mask(self) -> Tensor:
        """Causal mask [B, 1, T, T]."""
        rows, length = self.visual.shape
        whole = torch.ones(length, length, dtype=torch.bool, device=self.visual.device)
        return whole.tril().expand(rows, 1, -1, -1)

    def keep(self, stays: Tensor) -> Front:
        """The front without the tokens that do not stay, by a bool mask [B, T] that is False at padding."""
        hidden, visual, raters = (
            pad_sequence([row[own] for row, own in zip(value, stays, strict=True)], batch_first=True)
            for value in (self.hidden, self.visual, self.raters)
        )
        positions = [row[own] for row, own in zip(self.position_ids.permute(1, 2, 0), stays, strict=True)]
        return Front(
            hidden,
            pad_sequence(positions, batch_first=True).permute(2, 0, 1),
            stays.sum(1).tolist(),
            visual,
            raters,
            tuple(rows[stays[self.visual]] for rows in self.deepstack),
        )


class SparseVLM:
    """A verifier whose visual tokens leave behind three of its layers, so that it answers differently.

    Words with more than the mean rate on the input embeddings are raters; tokens stay by the attention that
    raters pay to them in the layer, at their positions. As in version 2.0, pruned tokens are not merged into
    new ones. Changed: layers and counts are relative to the model's depth and to the prompt's visual tokens;
    all heads count, and attention is not divided by that of the positions alone; text in front of the last
    picture does not rate.

    Args:
        backbone: The verifier's backbone.
        keep: Shares of the prompt's visual tokens that stay behind layers 2, 6 and 15 of 32, descending.

    Raises:
        ValueError: If these are no such shares, or the model has one layer only.
    """

    def __init__(self, backbone: Backbone, keep: Sequence[float] = PUBLISHED) -> None:
        check_shares(keep)
        if len(keep) != len(LAYERS) or list(keep) != sorted(keep, reverse=True):
            raise ValueError(f"keep is {list(keep)}; give {len(LAYERS)} shares, none above the one before.")
        if backbone.num_layers < 2:
            raise ValueError("The verifier has one layer; SparseVLM needs two, to rate and to gain by it.")
        self.backbone = backbone
        self.stages = stages(backbone.num_layers, keep)

    def prefill(self, inputs: Sequence[ModelInputs], reserve: int) -> tuple[SparseState, Tensor]:
        """Reads the prompts, see `Verifier.prefill`.

        Raises:
            ValueError: If a prompt ends in visual tokens.
        """
        backbone, device = self.backbone, self.backbone.device
        banks = backbone.encode(inputs)
        batch = assemble(inputs, banks, [backbone.embed(entry.ids) for entry in inputs])
        raters = self._raters(inputs, banks, batch)
        front = Front(
            batch.embeddings, batch.position_ids, batch.lengths, batch.visual, raters, batch.deepstack
        )
        state = SparseState([], Cache(layers=[]), [entry.next_position for entry in inputs])
        for layers, share in self.stages:
            cache = BlockCache(len(layers), len(inputs), max(front.lengths) + reserve, device)
            state.caches.append(cache)
            state.whole.layers.extend(cache.layers)
            front.hidden, before = run_layers(
                backbone,
                layers,
                front.hidden,
                front.position_ids,
                front.mask,
                state.whole,
                front.visual,
                front.deepstack,
            )
            cache.commit(front.lengths)
            if share is not None:
                counts = [kept_of(share, len(bank)) for bank in banks]
                scores = layer_attention(backbone, layers[-1], before, front.position_ids)
                front = front.keep(staying(front, scores, counts))
        last = torch.tensor(front.lengths, device=device) - 1
        return state, backbone.logits(front.hidden[torch.arange(len(inputs), device=device), last])

    def _raters(self, inputs: Sequence[ModelInputs], banks: list[VisualBank], batch: Assembled) -> Tensor:
        """Bool mask [B, T] of the words behind the last visual token that rate the visual tokens."""
        mask = torch.zeros_like(batch.visual)
        for row, (entry, bank) in enumerate(zip(inputs, banks, strict=True)):
            text = self.backbone.embed(entry.text_behind)
            if len(bank) and not len(text):
                raise ValueError(
                    "A prompt ends in visual tokens, which SparseVLM rates by the text behind. Put text last."
                )
            if len(bank):
                end = batch.lengths[row]
                mask[row, end - len(text) : end] = text_raters(bank.tokens, text)
        return mask

    def run(self, state: SparseState, tokens: Tensor) -> Tensor:
        """Logits [B, M, V] of tokens [B, M] behind the committed ones; nothing is committed yet."""
        backbone, count = self.backbone, tokens.shape[1]
        start = torch.tensor(state.next_positions, device=tokens.device)
        positions = start[:, None] + torch.arange(count, device=tokens.device)
        positions = positions.expand(backbone.num_axes, -1, -1)
        hidden = backbone.embed(tokens)
        for (layers, _), cache in zip(self.stages, state.caches, strict=True):
            cache.require(count)
            hidden, _ = run_layers(backbone, layers, hidden, positions, cache.mask(count), state.whole)
        return backbone.logits(hidden)

    def commit(self, state: SparseState, counts: list[int]) -> None:
        """Keeps the first tokens of the last pass, one count per row."""
        for cache in state.caches:
            cache.commit(counts)
        state.next_positions = [p + n for p, n in zip(state.next_positions, counts, strict=True)]


def stages(num_layers: int, keep: Sequence[float]) -> list[tuple[range, float | None]]:
    """Runs of layers, and the share of visual tokens that stay behind each; None behind the last.

    In a shallow model, where layers to prune behind coincide, the smaller share counts.
    """
    cuts: dict[int, float] = {}
    for layer, share in zip(LAYERS, keep, strict=True):
        cuts[min(round(layer * num_layers / DEPTH), num_layers - 2) + 1] = share
    bounds = [0, *cuts, num_layers]
    runs = [range(start, stop) for start, stop in pairwise(bounds)]
    return list(zip(runs, [*cuts.values(), None], strict=True))


def staying(front: Front, attention: Tensor, counts: Sequence[int]) -> Tensor:
    """Which tokens stay [B, T]: all text, and the visual tokens that raters look at most.

    Args:
        front: What the layer read.
        attention: Its attention weights [B, T, T].
        counts: Visual tokens to keep in each row; a row with fewer keeps all.
    """
    places = torch.arange(front.visual.shape[1], device=front.visual.device)
    stays = (places < torch.tensor(front.lengths, device=places.device)[:, None]) & ~front.visual
    for row, count in enumerate(counts):
        visual = front.visual[row].nonzero()[:, 0]
        if len(visual):
            scores = attention[row][front.raters[row]][:, visual].mean(0)
            stays[row, visual[scores.topk(min(count, len(visual))).indices]] = True
    return stays
