"""ViSpec: an EAGLE-2 head that sees each image as one vector in its text and one beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig
from transformers.cache_utils import Cache

from tiger.backbones.base import Backbone
from tiger.drafting.base import TokenTree
from tiger.drafting.heads.base import DraftHead, HeadState, HeadText
from tiger.drafting.heads.chains import causal, pick, unroll_chains
from tiger.drafting.heads.dynamic_tree import TreeSize, grow_tree
from tiger.drafting.heads.layers import Rope, bare_layer, layer_config


class ImgAdaptor(nn.Module):
    """Learned queries that attend to one image's input embeddings.

    Args:
        config: Sizes.
        num_q: Queries.
    """

    def __init__(self, config: LlamaConfig, num_q: int) -> None:
        super().__init__()
        size, heads, width = config.hidden_size, config.num_attention_heads, int(config.head_dim or 0)
        self.queries = nn.Parameter(torch.randn(num_q, heads, width) * width**-0.5)
        self.k_proj = nn.Linear(size, heads * width, bias=False)
        self.v_proj = nn.Linear(size, heads * width, bias=False)
        self.o_proj = nn.Linear(heads * width, size, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        """Vectors [num_q, D] of an image's embeddings [N, D]; of a zero embedding they are zero."""
        shape = (len(image), *self.queries.shape[1:])
        keys, values = (proj(image).view(shape).transpose(0, 1) for proj in (self.k_proj, self.v_proj))
        found = F.scaled_dot_product_attention(self.queries.transpose(0, 1), keys, values)
        vectors: Tensor = self.o_proj(found.transpose(0, 1).flatten(1))
        return vectors


@dataclass
class Compressed:
    """A text whose images are vectors.

    Attributes:
        inputs: What the layer reads [B, C, D].
        places: Places in the whole text [B, C], ascending; padding stands behind the others.
        lengths: What is no padding in each row.
        columns: Where each place of the whole text stands here, or the last kept place before it [B, T].
        views: Global vector of the last image before each place of the whole text [B, T, D].
    """

    inputs: Tensor
    places: Tensor
    lengths: list[int]
    columns: Tensor
    views: Tensor


@dataclass
class View:
    """What the head remembers of a request.

    Attributes:
        length: Places of the text, those of images all counted.
        image: Global vector of the last image [D].
    """

    length: int
    image: Tensor


class ViSpec(DraftHead):
    """Compresses images for the head's attention (arXiv 2509.15235).

    An adaptor turns each unbroken run of visual tokens into `num_q` vectors. All but the last stand for the
    run, at its last places, and enter the layer as they are; positions keep counting every visual token. The
    last one is global: joined to the features of the text behind the image, up to the next one. Without an
    image before it the global vector is zero. The rest is `Eagle2`.

    Args:
        verifier: The verifier.
        num_q: Vectors per run of visual tokens.
        total_tokens: See `TreeSize`.
        depth: See `TreeSize`.
        top_k: See `TreeSize`.

    Raises:
        ValueError: If there are fewer than two vectors.
    """

    method: ClassVar[str] = "vispec"

    def __init__(
        self,
        verifier: Backbone,
        num_q: int = 2,
        total_tokens: int = 30,
        depth: int = 3,
        top_k: int = 8,
    ) -> None:
        super().__init__(verifier)
        if num_q < 2:
            raise ValueError(
                f"num_q is {num_q}; an image needs 2 or more: one is global, the rest stand for it."
            )
        self.settings = {"num_q": num_q, "total_tokens": total_tokens, "depth": depth, "top_k": top_k}
        self.tree = TreeSize(total_tokens, depth, top_k)
        config, size = layer_config(verifier), verifier.hidden_size
        self.rope = Rope(config)
        self.adaptor = ImgAdaptor(config, num_q)
        self.img_fc = nn.Linear(2 * size, size)
        self.fc = nn.Linear(2 * size, size)
        self.layers = nn.ModuleList([bare_layer(config)])
        with torch.no_grad():  # features pass at first, so that a text head can be trained on
            self.img_fc.weight.copy_(torch.eye(size, 2 * size))
            self.img_fc.bias.zero_()

    def num_nodes(self, block_size: int) -> int:
        """The most tokens that a round proposes to a request."""
        return self.tree.num_nodes

    def scratch(self, block_size: int) -> int:
        """Places of the beams."""
        return self.tree.scratch(block_size)

    def join(self, embeddings: Tensor, features: Tensor, views: Tensor) -> Tensor:
        """Inputs [B, Q, D] of the layer at text, from embeddings, features and global vectors."""
        seen = self.img_fc(torch.cat([features, views.expand_as(features)], dim=-1))
        inputs: Tensor = self.fc(torch.cat([embeddings, seen], dim=-1))
        return inputs

    def attend(self, inputs: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """Hidden states [B, Q, D] of the layer's inputs."""
        hidden: Tensor = self.layers[0](
            inputs, mask, cache=cache, position_embeddings=self.rope(inputs, positions)
        )
        return hidden

    def step(
        self,
        views: Tensor,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: Cache,
    ) -> Tensor:
        """Predicts the features [B, Q, D] of tokens behind global vectors [B, Q or 1, D], see `Step`."""
        return self.attend(self.join(embeddings, features, views), positions, mask, cache)

    def compress(self, text: HeadText, before: Tensor) -> Compressed:
        """Puts vectors in the place of images.

        Args:
            text: The text.
            before: Global vectors [B, D] of earlier images.
        """
        rows = [self._compress_row(text, row, before[row]) for row in range(len(text.lengths))]
        inputs, kept, views = (torch.stack(parts) for parts in zip(*rows, strict=True))
        inputs = torch.where(text.visual[..., None], inputs, self.join(text.embeddings, text.features, views))
        lengths: list[int] = kept.sum(1).tolist()
        places = (~kept).int().argsort(dim=1, stable=True)[:, : max(lengths)]
        return Compressed(pick(inputs, places), places, lengths, kept.cumsum(1) - 1, views)

    def _compress_row(self, text: HeadText, row: int, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What stands at visual places [T, D], which places are kept [T], and the global vectors [T, D]."""
        visual = text.visual[row]
        kept = ~visual & (torch.arange(len(visual), device=visual.device) < text.lengths[row])
        edges = F.pad(visual.int(), (1, 1)).diff()
        starts, ends = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist()
        inputs, views = torch.zeros_like(text.embeddings[row]), [before]
        for start, end in zip(starts, ends, strict=True):
            vectors = self.adaptor(text.embeddings[row, start:end])
            local = vectors[:-1][start - end :]  # an image may be smaller than what stands for it
            slots = torch.arange(end - len(local), end, device=visual.device)
            inputs, kept = inputs.index_copy(0, slots, local), kept.index_fill(0, slots, True)
            views.append(vectors[-1])
        ended = (edges[: len(visual)] == -1).cumsum(0)
        return inputs, kept, torch.stack(views)[ended]

    def unroll(self, text: HeadText, roots: Tensor, depth: int) -> Tensor:
        """Hidden states [B, A, S, D] behind roots, for training, see `DraftHead.unroll`."""
        nothing = self.adaptor(torch.zeros_like(text.embeddings[0, :1]))[-1]  # zero; gives weights a gradient
        short = self.compress(text, nothing.expand(len(roots), -1))
        cache, (rows, count) = DynamicCache(), short.places.shape
        hidden = self.attend(short.inputs, short.places, causal(count, rows, roots.device), cache)
        columns = short.columns.gather(1, roots)
        step = partial(self.step, pick(short.views, roots))
        return unroll_chains(step, cache, text, roots, pick(hidden, columns), columns, depth)

    def draft(self, state: HeadState, text: HeadText, block_size: int) -> TokenTree:
        """Reads the text and grows a tree behind it."""
        cache = state.cache
        assert cache is not None
        blank = torch.zeros_like(text.embeddings[0, 0])
        notes: list[View] = state.notes or [View(0, blank) for _ in text.lengths]
        short = self.compress(text, torch.stack([note.image for note in notes]))
        starts = torch.tensor([note.length for note in notes], device=cache.device)
        mask = cache.mask(short.places.shape[1])
        hidden = self.attend(short.inputs, starts[:, None] + short.places, mask, cache)
        cache.commit(short.lengths)
        views, ends = text.last(short.views), starts + torch.tensor(text.lengths, device=cache.device)
        state.notes = [View(end, view) for end, view in zip(ends.tolist(), views, strict=True)]
        ends_hidden = text.last(pick(hidden, short.columns.clamp_min(0)))
        step = partial(self.step, views[:, None])
        return grow_tree(self, step, cache, ends_hidden, ends, self.tree, block_size)
