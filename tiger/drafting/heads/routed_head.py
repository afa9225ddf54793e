"""TIGER's router in front of a light head on the verifier's features (ours).

Keys and values of the head are made of the verifier's features: those of all text tokens, and those of the K
visual tokens that the router picked for the round. Its queries are the block. In the `parallel` form they are
the root and as many copies of a mask embedding as tokens are drafted, which see one another: one pass drafts
the whole block (the idea of DFlash, here with routed visual tokens), and a small step for each place tells it
the token before (ours). In the `autoregressive` form they are the root and the drafted tokens, which see what
is before them: one pass drafts one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
)

from tiger.backbones.base import Backbone
from tiger.drafting.base import TokenTree
from tiger.drafting.chain import Chain
from tiger.drafting.heads.base import DraftHead, HeadState, HeadText
from tiger.drafting.heads.layers import Rope, layer_config, next_positions
from tiger.routing.router import Router

Form = Literal["parallel", "autoregressive"]
Rotation = tuple[Tensor, Tensor]


@dataclass
class HeadRoutes:
    """Routed tokens of the roots of a text.

    Attributes:
        context: What the head reads of the verifier's features [B, T, D].
        visual: Places of visual tokens [B, T].
        scores: Router scores [B, A, T], -inf where no visual token stands.
        picked: The K places of each root [B, A, T].
    """

    context: Tensor
    visual: Tensor
    scores: Tensor
    picked: Tensor


class BlockReader(nn.Module):
    """A decoder layer whose keys and values come from two sources: the verifier's features and the block.

    Args:
        config: Sizes.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, width, bias=False)
        self.attention_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.mlp_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], -1, self.head_dim).transpose(1, 2)

    def keys_values(self, states: Tensor, rope: Rotation) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, T, head_dim] of normalised states [B, T, D]."""
        keys = self._heads(self.k_proj(states))
        rotated: Tensor = apply_rotary_pos_emb(keys, keys, *rope)[1]
        return rotated, self._heads(self.v_proj(states))

    def forward(self, block: Tensor, rope: Rotation, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Reads a block [B, Q, D] with keys and values [B, H, T, head_dim] under a mask [B, 1, Q, T]."""
        queries = self._heads(self.q_proj(self.attention_norm(block)))
        queries = apply_rotary_pos_emb(queries, queries, *rope)[0]
        read = scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
        block = block + self.o_proj(read.transpose(1, 2).flatten(2))
        result: Tensor = block + self.mlp(self.mlp_norm(block))
        return result


class Correction(nn.Module):
    """What a place of a block drafted in one pass learns of the token before it; nothing at first.

    Args:
        width: Width D of hidden states and embeddings.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, elementwise_affine=False)
        self.up = nn.Linear(2 * width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Hidden states [..., D], given the embeddings of the tokens before [..., D]."""
        read = torch.cat([self.norm(hidden), self.norm(before)], dim=-1)
        corrected: Tensor = hidden + self.down(silu(self.up(read)))
        return corrected


class RoutedHead(DraftHead):
    """A light routed head.

    Args:
        verifier: The verifier.
        form: Whether a block is drafted in one pass, or token by token.
        num_layers: Layers of the head.
        num_routed: K.
        layers: Layers of the verifier whose inputs are read; by default five spread over its depth, the token
            embeddings among them.

    Raises:
        ValueError: If a number is below one or the form is unknown.
    """

    method = "routed_head"

    def __init__(
        self,
        verifier: Backbone,
        form: Form = "parallel",
        num_layers: int = 3,
        num_routed: int = 16,
        layers: Sequence[int] | None = None,
    ) -> None:
        super().__init__(verifier)
        if form not in ("parallel", "autoregressive"):
            raise ValueError(f"form is {form!r}; choose 'parallel' or 'autoregressive'.")
        if min(num_layers, num_routed) < 1:
            raise ValueError(f"num_layers {num_layers} and num_routed {num_routed} must be 1 or more.")
        last = verifier.num_layers - 1
        spread = sorted({round(last * part / 4) for part in range(5)})
        self.feature_layers = tuple(spread if layers is None else layers)
        self.form, self.num_layers, self.num_routed = form, num_layers, num_routed
        self.settings = {
            "form": form,
            "num_layers": num_layers,
            "num_routed": num_routed,
            "layers": list(self.feature_layers),
        }
        config, width = layer_config(verifier, num_layers), verifier.hidden_size
        self.fuse = nn.Linear(self.feature_size, width, bias=False)
        self.feature_norm = nn.RMSNorm(verifier.hidden_size, elementwise_affine=False)
        self.context_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.readers = nn.ModuleList(BlockReader(config) for _ in range(num_layers))
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.rope = Rope(config)
        if form == "parallel":
            self.mask_embedding = nn.Parameter(torch.zeros(width))
            self.correction = Correction(width)
        self.opening = nn.Linear(2 * width, width, bias=False)
        self.router = Router(width)
        self.log_draft_temperature = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.confidence_threshold = 0.0

    @property
    def viewer(self) -> Backbone:
        """The model whose visual tokens routes count."""
        return self.verifier

    def _readers(self) -> list[BlockReader]:
        return [reader for reader in self.readers if isinstance(reader, BlockReader)]

    def temper(self, logits: Tensor) -> Tensor:
        """The logits [..., V] that drafts are sampled by, from those of the head."""
        return logits / self.log_draft_temperature.exp().to(logits.dtype)

    def context(self, features: Tensor) -> Tensor:
        """What the head reads of the verifier's features [B, T, F]: states [B, T, D]."""
        width = self.verifier.hidden_size
        parts = features.unflatten(-1, (-1, width))  # layers differ in scale by orders of magnitude
        states: Tensor = self.context_norm(self.fuse(self.feature_norm(parts).flatten(-2)))
        return states

    def scores(self, context: Tensor, roots: Tensor, embedded: Tensor, visual: Tensor) -> Tensor:
        """Router scores [B, A, T] of all places, -inf where no visual token stands (paper Eq. 8).

        Args:
            context: States [B, T, D].
            roots: Places before the roots [B, A].
            embedded: Embeddings of the roots [B, A, D].
            visual: Places of visual tokens [B, T].
        """
        index = roots[..., None].expand(-1, -1, context.shape[-1])
        query = self.opening(torch.cat([context.gather(1, index), self.router.norm(embedded)], dim=-1))
        scores: Tensor = self.router(self.router.norm(query), self.router.project(context))
        return scores.masked_fill(~visual[:, None], float("-inf"))

    def chosen(self, scores: Tensor) -> Tensor:
        """The K best-scored places [B, A, T] of each root; a text-only row has none."""
        best = scores.topk(min(self.num_routed, scores.shape[-1]), dim=-1).indices
        picked = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        return picked & scores.isfinite()

    def block(self, roots: Tensor, tokens: Tensor) -> Tensor:
        """Queries [..., Q, D] of a block.

        Args:
            roots: Embeddings of the roots [..., D].
            tokens: Embeddings of what follows [..., S, D], which only the autoregressive form reads.
        """
        if self.form == "autoregressive":
            return torch.cat([roots[..., None, :], tokens[..., :-1, :]], dim=-2)
        return torch.cat([roots[..., None, :], self.mask_embedding.expand_as(tokens)], dim=-2)

    def route(self, text: HeadText, roots: Tensor) -> HeadRoutes:
        """Routes once for every root [B, A], for training."""
        context, visual = self.context(text.features), shown(text.visual)
        scores = self.scores(context, roots, _at(text.embeddings, roots), visual)
        return HeadRoutes(context, visual, scores, self.chosen(scores))

    def unroll(self, text: HeadText, roots: Tensor, depth: int, routes: HeadRoutes | None = None) -> Tensor:
        """Hidden states [B, A, S, D] behind roots [B, A], by default with the routes of `route`."""
        batch, count = roots.shape
        routes = routes or self.route(text, roots)
        context, scores, picked = routes.context, routes.scores, routes.picked
        width = context.shape[1]
        places = torch.arange(width, device=roots.device)
        following = (roots[..., None] + 1 + torch.arange(depth, device=roots.device)).clamp_max(width - 1)
        tokens = _at(text.embeddings, following.flatten(1)).view(batch, count, depth, -1)
        block = self.block(_at(text.embeddings, roots), tokens)
        size = block.shape[2]
        seen = (places <= roots[..., None]) & (picked | ~routes.visual[:, None])
        bias = torch.zeros_like(scores).masked_fill(~seen, float("-inf"))
        gate = (scores - scores.detach()).masked_fill(~picked, 0.0)  # straight through, zero in value
        inside = self._inside(size, count, roots.device, bias.dtype)
        mask = torch.cat([(bias + gate).repeat_interleave(size, dim=1), inside.expand(batch, -1, -1)], dim=-1)
        steps = roots[..., None] + 1 + torch.arange(size, device=roots.device)
        far = self.rope(context, places.expand(batch, -1))
        near = self.rope(context, steps.flatten(1))
        hidden = block.flatten(1, 2)
        for reader in self._readers():
            old = reader.keys_values(context, far)
            new = reader.keys_values(reader.attention_norm(hidden), near)
            keys, values = (torch.cat(pair, dim=2) for pair in zip(old, new, strict=True))
            hidden = reader(hidden, near, keys, values, mask[:, None])
        hidden = self.norm(hidden.view(batch, count, size, -1)[:, :, size - depth :])
        if self.form == "parallel":
            before = torch.cat([_at(text.embeddings, roots)[:, :, None], tokens[:, :, :-1]], dim=2)
            hidden = self.correction(hidden, before)
        return hidden

    def _inside(self, size: int, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Mask [count * size, count * size] within blocks, which do not see one another."""
        one = torch.ones(size, size, dtype=torch.bool, device=device)
        blocks = torch.block_diag(*[one.tril() if self.form == "autoregressive" else one] * count) > 0
        return torch.zeros(blocks.shape, device=device, dtype=dtype).masked_fill(~blocks, float("-inf"))

    def scratch(self, block_size: int) -> int:
        """Places of the block in the cache, the root's among them."""
        return block_size + 1

    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Routes once, then drafts a chain."""
        cache = state.cache
        assert cache is not None
        context = self.context(text.features)
        rope = self.rope(context, next_positions(cache, context.shape[1]))
        for reader, layer in zip(self._readers(), cache.layers, strict=True):
            layer.update(*reader.keys_values(context, rope))
        cache.commit(text.lengths)
        if not state.notes:
            state.notes = list(zip(context, shown(text.visual), strict=True))
        roots = text.last(text.embeddings)
        picked, scores = self._route(state, text.last(context), roots)
        hidden = torch.stack([row for _, row in state.notes]) & ~picked
        tree = self._draft(state, roots, hidden, block_size)
        rows = [(row.cumsum(0) - 1)[chosen] for (_, row), chosen in zip(state.notes, picked, strict=True)]
        tree.routes = [row.tolist() for row in rows]
        tree.scores = [score[chosen].tolist() for score, chosen in zip(scores, picked, strict=True)]
        return tree

    def _route(self, state: HeadState, last: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        """Picked places [B, P] of the prompts and all scores."""
        prompts = torch.stack([states for states, _ in state.notes])
        visual = torch.stack([row for _, row in state.notes])
        query = torch.cat([prompts, last[:, None]], dim=1)
        place = torch.full((len(last), 1), prompts.shape[1], device=last.device)
        scores = self.scores(query, place, roots[:, None], pad(visual, (0, 1)))[:, :, :-1]
        return self.chosen(scores)[:, 0], scores[:, 0]

    def _draft(self, state: HeadState, roots: Tensor, hidden: Tensor, block_size: int) -> TokenTree:
        """Drafts behind roots [B, D]; prompt places `hidden` [B, P] are not seen."""
        cache = state.cache
        assert cache is not None
        threshold = self.confidence_threshold
        chain = Chain(state.sampling, state.generators, self.temper, block_size, threshold)
        batch, embedded = len(roots), roots[:, None]
        if self.form == "parallel":
            block = self.block(roots, self.mask_embedding.expand(batch, block_size, -1))
            for place in self._read(state, block, hidden)[:, 1:].split(1, dim=1):
                chosen = chain.write(self.score(self.correction(place, embedded))[:, 0])
                if chain.has_ended:
                    break
                embedded = self.embed(chosen)[:, None]
            return chain.tree()
        while not chain.has_ended:
            chosen = chain.write(self.score(self._read(state, embedded, hidden))[:, 0])
            cache.commit([1] * batch)
            embedded = self.embed(chosen)[:, None]
        tree = chain.tree()
        cache.commit([-tree.tokens.shape[1]] * batch)
        return tree

    def _read(self, state: HeadState, block: Tensor, hidden: Tensor) -> Tensor:
        """Hidden states [B, Q, D] of a block behind what is in the cache."""
        cache = state.cache
        assert cache is not None
        count = block.shape[1]
        cache.require(count)
        tree = torch.ones(count, count, dtype=torch.bool, device=block.device)
        width = cache.max_length + count
        mask = cache.mask(count, tree)
        seen = ~pad(hidden, (0, width - hidden.shape[1]))[:, None, None]
        mask = seen.expand(-1, 1, count, -1) if mask is None else mask & seen
        rope = self.rope(block, next_positions(cache, count))
        for reader, layer in zip(self._readers(), cache.layers, strict=True):
            keys, values = layer.update(*reader.keys_values(reader.attention_norm(block), rope))
            block = reader(block, rope, keys, values, mask)
        states: Tensor = self.norm(block)
        return states


def shown(following: Tensor) -> Tensor:
    """Which tokens j are visual [B, T], from which tokens j + 1 are; the first token never is."""
    return pad(following, (1, 0))[:, :-1]


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Entries [B, A, D] of values [B, T, D] at places [B, A]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))
