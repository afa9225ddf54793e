import json
from collections import Counter

from tests.drafting.test_training_free import observe, propose
from tiger.drafting.token_recycling import PATHS, TokenRecycling

# The tree as published, by the children of each token: [path, number of children] where there are any.
CHILDREN = """
[[[], 8], [[0], 8], [[1], 4], [[2], 3], [[3], 2], [[4], 1], [[5], 1], [[6], 1], [[7], 1],
 [[0, 0], 8], [[0, 1], 3], [[0, 2], 2], [[0, 3], 1], [[0, 4], 1], [[0, 5], 1], [[0, 6], 1], [[0, 7], 1],
 [[1, 0], 2], [[1, 1], 1], [[2, 0], 1], [[3, 0], 1], [[4, 0], 1], [[5, 0], 1],
 [[0, 0, 0], 5], [[0, 0, 1], 2], [[0, 0, 2], 1], [[0, 0, 3], 1], [[0, 0, 4], 1], [[0, 1, 0], 1],
 [[0, 2, 0], 1], [[1, 0, 0], 1], [[2, 0, 0], 1], [[3, 0, 0], 1],
 [[0, 0, 0, 0], 3], [[0, 0, 0, 1], 1], [[0, 0, 0, 2], 1], [[0, 0, 1, 0], 1], [[0, 1, 0, 0], 1],
 [[1, 0, 0, 0], 1], [[0, 0, 0, 0, 0], 2], [[0, 0, 0, 1, 0], 1]]
"""


def test_the_static_tree():
    expected = {(*path, rank) for path, count in json.loads(CHILDREN) for rank in range(count)}
    assert {tuple(map(int, path)) for path in PATHS} == expected
    assert len(PATHS) == len(expected) == 80
    assert Counter(map(len, PATHS)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert sorted(PATHS, key=lambda path: (len(path), path)) == PATHS


def test_a_full_matrix_fills_the_tree():
    """Behind token t, rank r is token (8 t + r + 1) % 64: every child tells its parent and rank."""
    rows = [[(8 * token + rank + 1) % 64 for rank in range(8)] for token in range(64)]
    method = TokenRecycling()
    state = observe(method, [(list(range(64)), list(range(64)), rows)])
    tokens, parents = propose(method, state, 5)
    assert len(tokens) == method.num_nodes(8) == 80
    for node, (path, parent) in enumerate(zip(PATHS, parents, strict=True)):
        above = 5 if parent == -1 else tokens[parent]
        assert tokens[node] == rows[above][int(path[-1])]
        assert ("" if parent == -1 else PATHS[parent]) == path[:-1]
    shallow = propose(method, state, 5, block_size=2)
    assert shallow == (tokens[:29], parents[:29])
    assert method.num_nodes(2) == 29


def test_unknown_tokens_have_no_children():
    rows = [[2, 3, 4, 5, 6, 7, 8, 9], [20, 21, 22, 23, 24, 25, 26, 27]]
    method = TokenRecycling()
    state = observe(method, [([1, 2], [0, 1], rows)])
    tokens, parents = propose(method, state, 1)
    # 2 is known and stands at rank 0, where the tree has 8 children; its children are not.
    assert tokens == rows[0] + rows[1]
    assert parents == [-1] * 8 + [0] * 8
    assert propose(method, state, 60) == ([], [])


def test_rejected_tokens_teach_and_the_newest_pass_counts():
    method = TokenRecycling()
    rows = [[9, 8, 7, 6, 5, 4, 3, 2], [30, 31, 32, 33, 34, 35, 36, 37]]
    state = observe(method, [([1, 50], [0, 1], rows), ([2, 50], [0], rows[::-1])])
    assert propose(method, state, 50, 1)[0] == rows[0]
    assert propose(method, state, 2, 1)[0] == rows[1]
