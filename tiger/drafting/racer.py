"""RACER: n-grams that were said before and the verifier's likeliest next tokens, merged in one tree."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tiger.drafting.ngram_trie import NgramTrie, Node
from tiger.drafting.training_free import Branches, TrainingFree

Candidates = dict[int, Any]  # next tokens, each with those behind it


@dataclass
class RacerMemory:
    """What is remembered of a request.

    Attributes:
        ngrams: Every run of `ngram` tokens of the text.
        likeliest: Next tokens of each token, as the verifier last saw it.
    """

    ngrams: NgramTrie
    likeliest: dict[int, list[int]] = field(default_factory=dict)


class Racer(TrainingFree[RacerMemory]):
    """Retrieval and logits in one tree (RACER; the names of its own parameters in brackets).

    Ends of the text that start an n-gram are continued by what followed most often; what is left of the
    budget goes to a tree whose breadth halves with rank and depth, filled as in token recycling. Unlike the
    original, the ends are looked up afresh in every round, in place of an automaton whose fail links grow
    stale and which loses its state at unknown tokens; a request starts empty (unless `warm`); visual
    placeholders are left out; tokens without a row get no children; and the point-mass rule makes answers
    exact at any temperature, which sampling each path apart is not.

    Args:
        tree_size: Most tokens of a tree, the root included (max_num_draft).
        breadth: Next tokens that are remembered of each token (max_breadth).
        ngram: Tokens of the n-grams (ngram).
        trie_size: Most nodes of the n-grams' trie (max_nodes).
        min_match: Tokens of the text, the root included, that must match (min_depth).
        chain: Whether one branch is proposed in place of a tree: what followed the longest end most often,
            then the likeliest next tokens (is_draft_chain).
        warm: See `TrainingFree`.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self,
        tree_size: int = 64,
        breadth: int = 8,
        ngram: int = 10,
        trie_size: int = 10_000,
        min_match: int = 2,
        chain: bool = False,
        warm: bool = False,
    ) -> None:
        if tree_size < 2 or breadth < 1 or not 1 <= min_match < ngram < trie_size:
            raise ValueError(
                f"tree_size {tree_size}, breadth {breadth}, min_match {min_match}, ngram {ngram}, trie_size "
                f"{trie_size}: out of range: tree_size > 1, breadth > 0, 0 < min_match < ngram < trie_size."
            )
        self.tree_size, self.breadth, self.ngram = tree_size, breadth, ngram
        self.trie_size, self.min_match, self.chain = trie_size, min_match, chain
        self.num_likeliest = breadth
        super().__init__(warm)

    def num_nodes(self, block_size: int) -> int:
        """The tokens of a tree."""
        return min(self.tree_size - 1, block_size) if self.chain else self.tree_size - 1

    def new_memory(self) -> RacerMemory:
        """Neither n-grams nor next tokens."""
        return RacerMemory(NgramTrie(self.trie_size))

    def read(self, memory: RacerMemory, text: list[int], num_new: int) -> None:
        """Inserts the n-grams that end in new tokens."""
        for end in range(max(len(text) - num_new + 1, self.ngram), len(text) + 1):
            memory.ngrams.insert(text[end - self.ngram : end])

    def learn(self, memory: RacerMemory, token: int, likeliest: list[int]) -> None:
        """Replaces a token's row."""
        memory.likeliest[token] = likeliest

    def branches(self, memory: RacerMemory, text: list[int], depth: int) -> Branches:
        """The merged tree, down to `depth`, level by level."""
        if self.chain:
            path = self._path(memory, text, min(depth, self.tree_size - 1))
            return path, list(range(-1, len(path) - 1))
        candidates: Candidates = {}
        chosen = self._retrieve(memory.ngrams, text, depth)
        for path in chosen:
            level = candidates
            for token in path:
                level = level.setdefault(token, {})
        self._grow(candidates, memory.likeliest, text[-1], self.tree_size - len(chosen), depth)
        return _flatten(candidates)

    def _path(self, memory: RacerMemory, text: list[int], depth: int) -> list[int]:
        """The one branch of a chain."""
        sizes = range(min(self.ngram - 1, len(text)), self.min_match - 1, -1)
        ends = (memory.ngrams.find(text[-size:]) for size in sizes)
        node, path = next((end for end in ends if end is not None), None), list[int]()
        while node is not None and node.children and len(path) < depth:
            node = max(node.children.values(), key=lambda child: child.count)
            path.append(node.token)
        while len(path) < depth and (row := memory.likeliest.get([text[-1], *path][-1])):
            path.append(row[0])
        return path

    def _retrieve(self, ngrams: NgramTrie, text: list[int], depth: int) -> list[list[int]]:
        """Paths to the most frequent nodes behind all ends of the text; those of the ends are empty."""
        found: list[tuple[Node, list[int]]] = []
        for size in range(min(self.ngram - 1, len(text)), self.min_match - 1, -1):
            end = ngrams.find(text[-size:])
            level = [] if end is None else [(end, list[int]())]
            while level:
                found += level
                level = [
                    (child, [*path, token])
                    for node, path in level
                    for token, child in node.children.items()
                    if len(path) < depth
                ]
        found.sort(key=lambda entry: (-entry[0].count, entry[0].depth))
        return [path for _, path in found[: self.tree_size - 1]]

    def _grow(
        self, tree: Candidates, likeliest: dict[int, list[int]], root: int, budget: int, depth: int
    ) -> None:
        """Adds a tree of `budget` tokens, the root included, in which breadth halves with rank and depth."""
        queue = deque([(tree, root, self.breadth, 0)])
        while queue:
            level, token, breadth, distance = queue.popleft()
            below = breadth if distance == 1 else breadth // 2
            for child in likeliest.get(token, [])[: breadth if distance < depth else 0]:
                if budget == 1:
                    return
                budget -= 1
                queue.append((level.setdefault(child, {}), child, max(1, below), distance + 1))
                below //= 2


def _flatten(candidates: Candidates) -> Branches:
    """Tokens and parents, level by level."""
    tokens: list[int] = []
    parents: list[int] = []
    queue = deque([(candidates, -1)])
    while queue:
        level, parent = queue.popleft()
        for token, below in level.items():
            queue.append((below, len(tokens)))
            tokens.append(token)
            parents.append(parent)
    return tokens, parents
