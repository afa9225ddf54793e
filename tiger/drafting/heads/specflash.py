"""SpecFLASH: one layer over compressed images, whose every place predicts several tokens at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from tiger.backbones.base import Backbone
from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead, HeadState, HeadText
from tiger.drafting.heads.layers import Rope, layer_config, next_positions
from tiger.drafting.heads.trees import StaticTree


class SpecFlashHead(DraftHead):
    """Latent-guided compression and semi-autoregressive drafting (FLASH, arXiv 2505.12728).

    A text token is read with the feature before it, W [e_{j+1}; h_j], as in EAGLE. The features F [N, D] of a
    run of visual tokens become softmax(A F^T) F for L learnt latents A [L, D]; a run of at most L tokens
    stays as it is. One decoder layer reads the sequence so shortened, and k offsets of W_2 SiLU(W_1 z) at the
    root predict the k features behind it, all in one pass.

    The published code ends before decoding. Here the verifier's logits of the offsets fill the static tree of
    EAGLE-1 that comes with it, in which all nodes of a depth share one list of children: deterministic, thus
    exact at any temperature. Also unlike it, text before an image is read like other text, each image of
    several is compressed by itself, and query heads attend to their own group of keys, not to the sum of all.

    Args:
        verifier: The verifier whose states it reads.
        num_offsets: Tokens k that one place predicts; the longest branch.
        num_latents: Places L that a run of visual tokens keeps at most.
        tree: Name of a published tree, or its paths, see `StaticTree`; longer branches are cut.

    Raises:
        ValueError: If there are no offsets or latents, or no such tree.
    """

    method = "specflash"

    def __init__(
        self,
        verifier: Backbone,
        num_offsets: int = 5,
        num_latents: int = 64,
        tree: str | Sequence[Sequence[int]] = "eagle1_25",
    ) -> None:
        super().__init__(verifier)
        if num_offsets < 1 or num_latents < 1:
            raise ValueError(
                f"num_offsets is {num_offsets} and num_latents {num_latents}; give one or more of both."
            )
        self.settings = {"num_offsets": num_offsets, "num_latents": num_latents, "tree": tree}
        self.num_offsets = num_offsets
        self.tree = StaticTree.of(tree, num_offsets, verifier.vocab_size)
        size, config = verifier.hidden_size, layer_config(verifier)
        self.latents = nn.Parameter(torch.randn(num_latents, size) * size**-0.5)
        self.fuse = nn.Linear(2 * size, size)
        self.layer = LlamaDecoderLayer(config, 0)
        self.offsets = nn.Sequential(
            nn.Linear(size, 4 * size), nn.SiLU(), nn.Linear(4 * size, num_offsets * size)
        )
        self.rope = Rope(config)

    def read(self, text: HeadText) -> tuple[Tensor, Tensor]:
        """The sequence that the layer reads.

        Args:
            text: Text; no row ends with a visual token.

        Returns:
            Inputs [B, T', D], padded on the right, and which places of the text they stand for [B, T]: text
            places have one each, a run of visual ones as many of its first as it keeps.
        """
        fused = self.fuse(torch.cat([text.embeddings, text.features], dim=-1))
        lengths = torch.tensor(text.lengths, device=fused.device)
        kept = torch.arange(fused.shape[1], device=fused.device) < lengths[:, None]
        if not text.visual.any():
            return fused, kept
        rows = []
        for row, length in enumerate(text.lengths):
            pieces, start = list[Tensor](), 0
            flags, counts = text.visual[row, :length].unique_consecutive(return_counts=True)
            for is_visual, count in zip(flags.tolist(), counts.tolist(), strict=True):
                end = start + count
                # Place j holds the feature of token j and asks whether token j + 1 is visual.
                piece = (
                    self.compress(text.features[row, start + 1 : end + 1])
                    if is_visual
                    else fused[row, start:end]
                )
                kept[row, start + len(piece) : end] = False
                pieces.append(piece)
                start = end
            rows.append(torch.cat(pieces))
        return pad_sequence(rows, batch_first=True), kept

    def compress(self, features: Tensor) -> Tensor:
        """Features [N, D] of one run of visual tokens as [min(N, L), D]."""
        if len(features) <= len(self.latents):
            return features
        weights = (self.latents @ features.T).float().softmax(-1)
        return weights.to(features.dtype) @ features

    def unroll(self, text: HeadText, roots: Tensor, depth: int) -> Tensor:
        """Offsets at the roots, which stand where the compression has moved them.

        Raises:
            ValueError: If there are fewer offsets than `depth`.
        """
        if depth > self.num_offsets:
            raise ValueError(
                f"SpecFLASH has {self.num_offsets} offsets and cannot predict {depth} tokens. Lower the "
                "depth, or train with a larger num_offsets."
            )
        hidden, kept = self.read(text)
        count = hidden.shape[1]
        causal = (
            torch.ones(count, count, dtype=torch.bool, device=hidden.device)
            .tril()
            .expand(len(hidden), 1, -1, -1)
        )
        positions = torch.arange(count, device=hidden.device)[None]
        states = self.layer(hidden, causal, position_embeddings=self.rope(hidden, positions))
        rows = torch.arange(len(roots), device=roots.device)[:, None]
        return self.predict(states[rows, (kept.cumsum(1) - 1)[rows, roots]], depth)

    def predict(self, states: Tensor, depth: int) -> Tensor:
        """The first S = `depth` offsets [..., S, D] of the layer's states [..., D]."""
        offsets: Tensor = self.offsets(states).unflatten(-1, (self.num_offsets, -1))
        return offsets[..., :depth, :]

    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Reads the new text, whose visual runs are shortened in the cache too, and fills the tree."""
        cache = state.cache
        assert cache is not None
        hidden, kept = self.read(text)
        count, lengths = hidden.shape[1], kept.sum(1)
        rope = self.rope(hidden, next_positions(cache, count))
        states = self.layer(hidden, cache.mask(count), cache=cache, position_embeddings=rope)
        cache.commit(lengths.tolist())
        last = states[torch.arange(len(states), device=states.device), lengths - 1]
        return self.tree.cut(block_size).fill(self.score(self.predict(last, block_size)))

    def num_nodes(self, block_size: int) -> int:
        """The nodes of the tree that fit a block."""
        return len(self.tree.cut(block_size))
