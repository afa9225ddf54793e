"""Trees of a head that is a table, worked out by hand."""

import pytest
import torch

from tiger.backbones.cache import BlockCache
from tiger.drafting.heads.dynamic_tree import TreeSize, grow_tree

ROWS = [[0, 0.6, 0.3, 0.1], [0.1, 0.5, 0.0, 0.4], [0.1, 0.0, 0.0, 0.9], [0.2, 0.0, 0.8, 0.0]]


class Table:
    """Scores next tokens by the last token; hidden states are one-hot tokens."""

    def __init__(self, rows, draft_ids=None):
        self.rows, self.draft_ids, self.calls = torch.tensor(rows), draft_ids, []

    def embed(self, tokens):
        return torch.eye(len(self.rows))[tokens]

    def score(self, hidden, depths=None):
        return (hidden @ self.rows).log()

    def step(self, embeddings, features, positions, mask, cache):
        self.calls.append((positions, mask, list(cache.lengths)))
        for layer in cache.layers:
            layer.update(embeddings[:, None], embeddings[:, None])
        return embeddings


def grow(table, size, block_size, roots=(0,), lengths=(3,)):
    cache = BlockCache(1, len(roots), 40)
    cache.lengths = list(lengths)
    hidden = table.embed(torch.tensor(roots))
    tree = grow_tree(table, table.step, cache, hidden, torch.tensor(lengths), size, block_size)
    assert cache.lengths == list(lengths)
    return tree.tokens.tolist(), tree.parents.tolist()


def test_a_worked_example():
    # Level 1: 1 (.6), 2 (.3). Level 2, below 1: 1 (.30), 3 (.24); below 2: 3 (.27), 0 (.03).
    # The beam keeps 1-1 and 2-3. Level 3, below 1-1: 1 (.15), 3 (.12); below 2-3: 2 (.216), 0 (.054).
    assert grow(Table(ROWS), TreeSize(7, 2, 2), 8) == ([[1, 2, 1, 3, 3, 2]], [[-1, -1, 0, 0, 1, 4]])
    assert grow(Table(ROWS), TreeSize(4, 2, 2), 8) == ([[1, 2, 1]], [[-1, -1, 0]])
    tokens, parents = grow(Table(ROWS), TreeSize(100, 2, 2), 8)
    assert tokens == [[1, 2, 1, 3, 3, 0, 1, 3, 2, 0]]
    assert parents == [[-1, -1, 0, 0, 1, 1, 2, 2, 4, 4]]


def test_branches_end_at_the_block():
    assert grow(Table(ROWS), TreeSize(7, 5, 2), 1) == ([[1, 2]], [[-1, -1]])
    assert grow(Table(ROWS), TreeSize(7, 5, 2), 2) == ([[1, 2, 1, 3, 3, 0]], [[-1, -1, 0, 0, 1, 1]])
    assert TreeSize(60, 5, 10).num_levels(8) == 6
    assert TreeSize(60, 5, 10).num_levels(4) == 4


def test_rows_do_not_depend_on_one_another():
    table = Table(ROWS)
    both = grow(table, TreeSize(7, 2, 2), 8, (0, 3), (3, 5))
    alone = [grow(Table(ROWS), TreeSize(7, 2, 2), 8, (root,)) for root in (0, 3)]
    assert both == tuple([a[0] for a in part] for part in zip(*alone, strict=True))
    (first, mask, at), (second, deeper, behind) = table.calls
    assert first.tolist() == [[3, 3], [5, 5]]
    assert second.tolist() == [[4, 4], [6, 6]]
    assert (at, behind) == ([3, 5], [5, 7])
    text = [[True] * 3 + [False] * 0, [True] * 5]
    assert mask[0, 0].tolist() == [
        text[0] + [True, False] + [False] * 2,
        text[0] + [False, True] + [False] * 2,
    ]
    # In the first row 1-1 and 2-3 are read behind 1 and 2; each sees its own.
    assert deeper[0, 0, :, 3:7].tolist() == [[True, False, True, False], [False, True, False, True]]


def test_a_sure_child_never_stands_without_its_parent():
    sure = [[0, 0.5, 0.5], [0, 0, 1.0], [1.0, 0, 0]]
    for total in range(2, 9):
        (tokens,), (parents,) = grow(Table(sure), TreeSize(total, 3, 2), 8)
        assert all(above < index for index, above in enumerate(parents))
        assert len(tokens) == total - 1


def test_drafted_ids_are_those_of_the_verifier():
    ids = torch.tensor([10, 20, 30, 40])
    table = Table(ROWS, ids)
    table.embed = lambda tokens: torch.eye(4)[torch.searchsorted(ids, tokens)]
    cache = BlockCache(1, 1, 40)
    cache.lengths = [3]
    tree = grow_tree(table, table.step, cache, torch.eye(4)[:1], torch.tensor([3]), TreeSize(7, 2, 2), 8)
    assert tree.tokens.tolist() == [[20, 30, 20, 40, 40, 30]]


@pytest.mark.parametrize("sizes", [(1, 5, 10), (60, -1, 10), (60, 5, 0)])
def test_empty_trees_are_refused(sizes):
    with pytest.raises(ValueError, match="is empty: total_tokens must be 2 or more"):
        TreeSize(*sizes)
