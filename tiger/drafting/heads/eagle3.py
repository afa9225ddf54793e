"""EAGLE-3: one layer over features of several verifier layers, with a vocabulary head of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from tiger.backbones.base import Backbone
from tiger.backbones.features import check_layers
from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead, HeadState, HeadText
from tiger.drafting.heads.chains import causal, pick, unroll_chains
from tiger.drafting.heads.dynamic_tree import TreeSize, grow_tree
from tiger.drafting.heads.layers import Rope, layer_config, next_positions


class MidLayer(nn.Module):
    """A decoder layer whose attention reads a token's embedding and a feature side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * size, narrow.out_features, bias=False))
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self.mlp = LlamaMLP(config)

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        mask: Tensor | None,
        cache: Cache,
        rotation: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Hidden states [B, Q, D] of embeddings and features [B, Q, D]; a feature is the residual."""
        joined = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(features)], dim=-1)
        attended, _ = self.self_attn(joined, rotation, mask, cache)
        hidden: Tensor = features + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3(DraftHead):
    """Drafts from three layers of the verifier, then from its own hidden states (arXiv 2503.01840).

    No loss ties its hidden states to the verifier's, so they are free, and its vocabulary head is its own; it
    starts as the verifier's. At visual places it reads the placeholder's embedding, since the features hold
    the image already; servers that know no visual embeddings for drafters then see the same.

    Weights are named as in the layout of vLLM's speculators: `draft_ids` minus their indices is `d2t`, the
    rest keeps its name, and `norm_before_residual` is false.

    Args:
        verifier: The verifier.
        layers: Layers of the verifier whose inputs are read, see `default_layers`; none for its final states.
        draft_vocab_size: Ids that the head can draft, chosen by `restrict`; all by default.
        total_tokens: See `TreeSize`.
        depth: See `TreeSize`.
        top_k: See `TreeSize`.

    Raises:
        ValueError: If the verifier has no such layer, or adds visual features behind it; or the draft
            vocabulary is larger than the verifier's.
    """

    method: ClassVar[str] = "eagle3"

    def __init__(
        self,
        verifier: Backbone,
        layers: Sequence[int] | None = None,
        draft_vocab_size: int | None = None,
        total_tokens: int = 60,
        depth: int = 5,
        top_k: int = 10,
    ) -> None:
        super().__init__(verifier)
        self.feature_layers = default_layers(verifier) if layers is None else tuple(layers)
        check_layers(verifier, self.feature_layers)
        if self.feature_layers and min(self.feature_layers) < verifier.num_deepstack:
            raise ValueError(
                f"The head reads what enters layers {list(self.feature_layers)}, but the verifier adds "
                f"visual features up to there. Choose layers from {verifier.num_deepstack} on."
            )
        self.tree = TreeSize(total_tokens, depth, top_k)
        self.settings = {
            "layers": list(self.feature_layers),
            "draft_vocab_size": draft_vocab_size,
            "total_tokens": total_tokens,
            "depth": depth,
            "top_k": top_k,
        }
        config, size, known = layer_config(verifier), verifier.hidden_size, verifier.vocab_size
        if draft_vocab_size is not None and not 1 <= draft_vocab_size <= known:
            raise ValueError(f"draft_vocab_size is {draft_vocab_size}; the verifier has {known} ids.")
        self.rope = Rope(config)
        self.fc = nn.Linear(self.feature_size, size, bias=False)
        self.layers = nn.ModuleList([MidLayer(config)])
        self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(size, draft_vocab_size or known, bias=False)
        ids = torch.arange(self.lm_head.out_features)
        self._start(ids)
        if draft_vocab_size is not None:
            self.draft_ids = ids

    def restrict(self, ids: Sequence[int]) -> None:
        """Sets the ids that can be drafted, such as the most frequent ones of the training answers.

        Call it before training: the vocabulary head starts anew. Without it they are the lowest ids.

        Args:
            ids: `draft_vocab_size` different ids.

        Raises:
            ValueError: If there are more or fewer, or one is no id of the verifier.
        """
        size, known = self.settings["draft_vocab_size"], self.verifier.vocab_size
        chosen = sorted(set(ids))
        if len(chosen) != size or not 0 <= chosen[0] <= chosen[-1] < known:
            raise ValueError(
                f"{len(chosen)} different ids were given, from {chosen[:1]} to {chosen[-1:]}; "
                f"draft_vocab_size is {size}, and ids end below {known}. Give that many, "
                "or build the head with another size."
            )
        warn_without_end(self.verifier, chosen)
        self.draft_ids = torch.tensor(chosen, device=self.lm_head.weight.device)
        self._start(self.draft_ids)

    @torch.no_grad()
    def _start(self, ids: Tensor) -> None:
        """Starts the vocabulary head as the verifier's, at the given ids."""
        rows = self.verifier.model.get_output_embeddings().weight
        self.lm_head.weight.copy_(rows[ids.to(rows.device)])

    def num_nodes(self, block_size: int) -> int:
        """The most tokens that a round proposes to a request."""
        return self.tree.num_nodes

    def scratch(self, block_size: int) -> int:
        """Places of the beams."""
        return self.tree.scratch(block_size)

    def score(self, hidden: Tensor, depths: Tensor | None = None) -> Tensor:
        """Logits [..., V'] of the head's hidden states [..., D]."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits

    def step(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache
    ) -> Tensor:
        """Hidden states [B, Q, D] of tokens, before the final norm, see `Step`."""
        hidden: Tensor = self.layers[0](embeddings, features, mask, cache, self.rope(features, positions))
        return hidden

    def unroll(self, text: HeadText, roots: Tensor, depth: int) -> Tensor:
        """Hidden states [B, A, S, D] behind roots, for training, see `DraftHead.unroll`."""
        rows, count = text.tokens.shape
        text = replace(text, embeddings=self.embed(text.tokens))
        cache, places = DynamicCache(), torch.arange(count, device=roots.device).expand(rows, -1)
        mask = causal(count, rows, roots.device)
        hidden = self.step(text.embeddings, self.fc(text.features), places, mask, cache)
        return unroll_chains(self.step, cache, text, roots, pick(hidden, roots), roots, depth)

    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Reads the text and grows a tree behind it."""
        cache, count = state.cache, text.tokens.shape[1]
        assert cache is not None
        features, places = self.fc(text.features), next_positions(cache, count)
        hidden = self.step(self.embed(text.tokens), features, places, cache.mask(count), cache)
        cache.commit(text.lengths)
        ends = next_positions(cache, 1)[:, 0]
        return grow_tree(self, self.step, cache, text.last(hidden), ends, self.tree, block_size)


def default_layers(verifier: Backbone) -> tuple[int, ...]:
    """An early layer without unfinished visual features, a middle and a late one (2, L // 2 and L - 3).

    A verifier with few layers has fewer different ones.
    """
    last = verifier.num_layers - 1
    first = min(max(2, verifier.num_deepstack), last)
    return tuple(sorted({first, max(first, (last + 1) // 2), max(first, last - 2)}))


def warn_without_end(verifier: Backbone, ids: Sequence[int]) -> None:
    """Warns of a draft vocabulary in which no answer ends."""
    if verifier.eos_ids and not set(verifier.eos_ids) & set(ids):
        warnings.warn(
            f"None of the {len(ids)} ids ends an answer ({verifier.eos_ids}): ends are never drafted. "
            "Put one among them.",
            stacklevel=3,
        )
