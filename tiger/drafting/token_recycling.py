"""Token recycling: the verifier's likeliest next tokens, kept for every token, fill a static tree."""

from __future__ import annotations

from tiger.drafting.training_free import Branches, TrainingFree

Adjacency = dict[int, list[int]]  # the likeliest next tokens of each token, as the verifier last saw it

# The tree "2.2.2" of the paper: 80 tokens, each named by the ranks on its path, one line per depth (or two).
SHAPE = """
    0 1 2 3 4 5 6 7
    00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
    000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070
    100 101 110 200 300 400 500
    0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
    00000 00001 00002 00010 00020 00100 01000 10000
    000000 000001 000100
"""
PATHS = SHAPE.split()
BREADTH = 8


class TokenRecycling(TrainingFree[Adjacency]):
    """A static tree filled from an adjacency matrix (Luo et al. 2024, arXiv 2408.08696).

    The token at rank r below another is the r-th likeliest behind it, as the verifier last saw it: after
    every pass each token of the tree, rejected ones too, gets a new row. Unlike the original, a request
    starts with an empty matrix (unless `warm`), which the prompt's text fills; tokens without a row get no
    children in place of zeros; where a token stands several times in a pass, the accepted place counts, else
    the last one; and answers are exact at any temperature, not only greedily.

    Args:
        warm: See `TrainingFree`.
    """

    num_likeliest = BREADTH

    def num_nodes(self, block_size: int) -> int:
        """The tokens of the static tree down to the depth of a block."""
        return sum(len(path) <= block_size for path in PATHS)

    def new_memory(self) -> Adjacency:
        """No token has been seen."""
        return {}

    def learn(self, memory: Adjacency, token: int, likeliest: list[int]) -> None:
        """Replaces a token's row."""
        memory[token] = likeliest

    def branches(self, memory: Adjacency, text: list[int], depth: int) -> Branches:
        """The static tree, down to `depth`, without what hangs from unknown tokens."""
        tokens, parents, places = [text[-1]], [], {"": 0}
        for path in PATHS:
            parent, rank = places.get(path[:-1]), int(path[-1])
            row = [] if parent is None else memory.get(tokens[parent], [])
            if parent is not None and len(path) <= depth and rank < len(row):
                places[path] = len(tokens)
                tokens.append(row[rank])
                parents.append(parent - 1)
        return tokens[1:], parents
