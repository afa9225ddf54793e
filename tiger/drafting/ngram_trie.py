"""Counted n-grams in a trie of limited size, the least recently seen forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """A token behind a prefix.

    Attributes:
        token: The token.
        depth: Tokens from the trie's root to here.
        parent: The prefix; None for the trie's root.
        count: How often the path to here was inserted.
        children: Next tokens.
    """

    token: int
    depth: int
    parent: Node | None
    count: int = 0
    children: dict[int, Node] = field(default_factory=dict)


class NgramTrie:
    """All prefixes of the inserted n-grams with their counts.

    Args:
        capacity: Most nodes; a new one then takes the place of the one that was seen longest ago.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.root = Node(-1, 0, None)
        self._seen: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def insert(self, ngram: Sequence[int]) -> None:
        """Counts an n-gram and its prefixes."""
        path, node = [], self.root
        known = self._walk(ngram)
        self._touch(known)
        for token in ngram:
            if token not in node.children:
                self._make_room()
                node.children[token] = Node(token, node.depth + 1, node)
            node = node.children[token]
            node.count += 1
            self._seen[node] = None
            path.append(node)
        self._touch(path)

    def find(self, ngram: Sequence[int]) -> Node | None:
        """The node of an n-gram."""
        path = self._walk(ngram)
        return path[-1] if path and len(path) == len(ngram) else None

    def _walk(self, ngram: Sequence[int]) -> list[Node]:
        """The known part of an n-gram's path."""
        path, node = [], self.root
        for token in ngram:
            if token not in node.children:
                break
            node = node.children[token]
            path.append(node)
        return path

    def _touch(self, path: list[Node]) -> None:
        """Marks a path as just seen, prefixes last, so that the oldest node never has children."""
        for node in reversed(path):
            self._seen.move_to_end(node)

    def _make_room(self) -> None:
        if len(self._seen) == self.capacity:
            oldest, _ = self._seen.popitem(last=False)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.token]
