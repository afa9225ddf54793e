import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiger.backbones.cache import BlockCache

HEADS, DIM = 2, 3


class Naive:
    """Rows as lists of committed key vectors; what `BlockCache` must amount to."""

    def __init__(self, rows):
        self.rows = [[] for _ in range(rows)]

    def visible(self, fresh, trees):
        """Keys that query t of each row may see, in order of writing."""
        return [
            [row + [new[i] for i in range(len(new)) if tree[t][i]] for t in range(len(new))]
            for row, new, tree in zip(self.rows, fresh, trees, strict=True)
        ]


@st.composite
def histories(draw):
    batch = draw(st.integers(1, 4))
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 4))
        places = st.lists(st.integers(0, count - 1), unique=True).map(sorted)
        kept = draw(st.lists(places, min_size=batch, max_size=batch))
        back = draw(st.lists(st.integers(0, 2), min_size=batch, max_size=batch))
        rows = draw(st.lists(st.integers(0, batch - 1), min_size=1, unique=True))
        use_tree = draw(st.booleans())
        parents = [draw(st.integers(-1, i - 1)) for i in range(count)]
        steps.append((count, kept, back, sorted(rows), use_tree, parents))
        kept_rows = sorted(rows)
        batch = len(kept_rows)
    return steps


def ancestors(parents):
    count = len(parents)
    tree = torch.eye(count, dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            tree[i] |= tree[parent]
    return tree


@settings(max_examples=50)
@given(histories())
def test_any_history_equals_rows_of_lists(steps):
    batch = len(steps[0][1])
    cache, naive = BlockCache(2, batch, capacity=40), Naive(batch)
    stamp = 0
    for count, kept, back, rows, use_tree, parents in steps:
        batch = len(naive.rows)
        fresh = (
            torch.arange(stamp, stamp + batch * HEADS * count * DIM).float().view(batch, HEADS, count, DIM)
        )
        stamp += fresh.numel()
        # Another tree in every row: more and more of the last tokens follow the root.
        trees = [ancestors((parents[: max(count - row, 0)] + [-1] * row)[:count]) for row in range(batch)]
        trees = torch.stack(trees) if use_tree else torch.ones(batch, count, count, dtype=torch.bool).tril()
        cache.require(count)
        mask = cache.mask(count, trees if use_tree else None)
        for layer in cache.layers:
            keys, values = layer.update(fresh, fresh + 0.5)
        assert keys.shape[2] == cache.max_length + count
        if mask is None:
            assert count == 1
            mask = torch.ones(batch, 1, 1, keys.shape[2], dtype=torch.bool)
        expected = naive.visible([[row[:, t] for t in range(count)] for row in fresh], trees.tolist())
        for row in range(batch):
            for t in range(count):
                seen = keys[row][:, mask[row, 0, t]].unbind(1)
                assert torch.equal(values[row][:, mask[row, 0, t]], keys[row][:, mask[row, 0, t]] + 0.5)
                assert len(seen) == len(expected[row][t])
                assert all(map(torch.equal, seen, expected[row][t]))
        cache.gather(kept)
        cache.commit(list(map(len, kept)))
        naive.rows = [
            old + [new[:, t] for t in path] for old, new, path in zip(naive.rows, fresh, kept, strict=True)
        ]
        back = [min(n, len(row)) for n, row in zip(back, naive.rows, strict=True)]
        cache.commit([-n for n in back])
        naive.rows = [row[: len(row) - n] for row, n in zip(naive.rows, back, strict=True)]
        if len(rows) < batch:
            cache.select_rows(rows)
            naive.rows = [naive.rows[row] for row in rows]
        else:
            assert rows == list(range(batch))
        assert cache.lengths == list(map(len, naive.rows))
        assert cache.get_seq_length() == max(map(len, naive.rows))


def test_one_token_of_equal_rows_needs_no_mask():
    cache = BlockCache(1, 2, 8)
    assert cache.mask(1) is None
    cache.commit([1, 2])
    assert cache.mask(1).tolist() == [[[[True, True, False]]], [[[True, True, True]]]]


def test_slabs_are_never_reallocated():
    cache = BlockCache(1, 1, 16)
    layer = cache.layers[0]
    layer.update(torch.zeros(1, HEADS, 3, DIM), torch.zeros(1, HEADS, 3, DIM))
    place = layer.keys.data_ptr()
    for _ in range(4):
        cache.commit([3])
        keys, _ = layer.update(torch.ones(1, HEADS, 3, DIM), torch.ones(1, HEADS, 3, DIM))
        assert keys.data_ptr() == layer.keys.data_ptr() == place
        cache.commit([-1])


def test_full_cache_names_the_numbers():
    cache = BlockCache(1, 2, 8)
    cache.commit([5, 7])
    cache.require(1)
    with pytest.raises(ValueError, match="holds 8 tokens but 9"):
        cache.require(2)
