"""Static trees: shapes that are fixed before decoding and filled with the likeliest tokens of each depth.

A shape is a set of paths. A path names the ranks from the root's child down to a node, so that (0, 2) is the
third likeliest second token behind the likeliest first one.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from tiger.decoding.records import ROOT
from tiger.drafting.base import TokenTree

# Published shapes: Medusa's, measured on several models, and the tree of 25 of EAGLE-1 and SpecFLASH.
SHAPES_FILE = Path(__file__).with_name("tree_shapes.json")
RANKS = 10  # ranks that the published shapes use


@lru_cache
def shapes() -> dict[str, list[list[int]]]:
    """Published shapes by name, each a list of paths."""
    loaded: dict[str, list[list[int]]] = json.loads(SHAPES_FILE.read_text())
    return loaded


@dataclass(frozen=True)
class StaticTree:
    """A shape.

    Attributes:
        paths: Its paths, shorter ones first.
    """

    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: str | Sequence[Sequence[int]], depth: int, breadth: int) -> StaticTree:
        """The part of a shape that has at most `depth` tokens in a path and `breadth` ranks.

        Args:
            shape: Name of a published shape, or its paths.
            depth: Tokens that can be predicted.
            breadth: Tokens of the vocabulary.

        Raises:
            ValueError: If there is no such name, or a path's beginning is missing.
        """
        if isinstance(shape, str) and shape not in shapes():
            raise ValueError(
                f"There is no tree {shape!r}; choose one of {', '.join(shapes())}, or list its paths."
            )
        paths = {tuple(path) for path in (shapes()[shape] if isinstance(shape, str) else shape)}
        missing = sorted({path[:-1] for path in paths if len(path) != 1} - paths)
        if missing or not paths:
            raise ValueError(
                f"The tree of {len(paths)} paths lacks {missing or 'any path'}: every beginning of a path, "
                "down to one rank, must be a path too. Add them."
            )
        kept = [path for path in paths if max(path) < breadth]
        return cls(tuple(sorted(kept, key=lambda path: (len(path), path)))).cut(depth)

    def __len__(self) -> int:
        return len(self.paths)

    def cut(self, depth: int) -> StaticTree:
        """The part of at most `depth` tokens in a path."""
        return StaticTree(tuple(path for path in self.paths if len(path) <= depth))

    def fill(self, logits: Tensor) -> TokenTree:
        """The proposal of all rows: nodes of one depth and rank hold the same token.

        Args:
            logits: Logits [B, S, V] of the depths 1 to S, as deep and broad as the tree at least.
        """
        ranked = logits.topk(max(map(max, self.paths)) + 1).indices
        depths = torch.tensor([len(path) - 1 for path in self.paths], device=logits.device)
        ranks = torch.tensor([path[-1] for path in self.paths], device=logits.device)
        places = {path: node for node, path in enumerate(self.paths)} | {(): ROOT}
        parents = torch.tensor([places[path[:-1]] for path in self.paths], device=logits.device)
        return TokenTree(ranked[:, depths, ranks], parents.expand(len(logits), -1))


def rank_accuracies(logits: Tensor, targets: Tensor, valid: Tensor, num_ranks: int = RANKS) -> Tensor:
    """How often each rank of each depth is right [S, R], in [0, 1].

    Args:
        logits: Logits [..., S, V] behind roots of held-out text.
        targets: The tokens that follow [..., S].
        valid: Which of them count [..., S].
        num_ranks: Ranks R.
    """
    ranked = logits.topk(num_ranks).indices
    right = ((ranked == targets[..., None]) & valid[..., None]).flatten(0, -3).sum(0)
    return right / valid.flatten(0, -2).sum(0)[:, None].clamp_min(1)


def likeliest_paths(accuracies: Sequence[Sequence[float]], num_nodes: int = 63) -> list[list[int]]:
    """The paths of a tree for measured accuracies, for `StaticTree.of` (Cai et al. 2024, section 2.3.3).

    A path is right with the product of its ranks' accuracies, as if depths were independent. Taking the
    likeliest node next, starting at the root, gives the tree with the most accepted tokens on average.

    Args:
        accuracies: Accuracy of each rank at each depth [S, R], see `rank_accuracies`.
        num_nodes: Nodes M at most.
    """

    def children(path: tuple[int, ...]) -> list[tuple[float, tuple[int, ...]]]:
        ranks = range(len(accuracies[len(path)])) if len(path) < len(accuracies) else ()
        paths = [(*path, rank) for rank in ranks]
        return [(-prod(accuracies[depth][rank] for depth, rank in enumerate(p)), p) for p in paths]

    waiting, chosen = children(()), list[list[int]]()
    heapq.heapify(waiting)
    while waiting and len(chosen) < num_nodes:
        _, path = heapq.heappop(waiting)
        chosen.append(list(path))
        for child in children(path):
            heapq.heappush(waiting, child)
    return chosen
