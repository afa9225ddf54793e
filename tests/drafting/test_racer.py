from collections import Counter
from random import Random

import pytest

from tests.drafting.test_training_free import observe, propose
from tiger.drafting.ngram_trie import NgramTrie
from tiger.drafting.racer import Racer

# The published tree without n-grams: children of each token by rank, where there are any.
LOGITS_TREE = {
    "": 8, "0": 4, "1": 2, "2": 1, "3": 1, "4": 1, "5": 1, "6": 1, "7": 1,
    "00": 4, "01": 2, "02": 1, "03": 1, "10": 2, "11": 1,
    "20": 1, "30": 1, "40": 1, "50": 1, "60": 1, "70": 1,
    "000": 2, "001": 1, "002": 1, "003": 1, "010": 1, "011": 1, "020": 1, "030": 1,
    "100": 1, "101": 1, "110": 1, "200": 1, "300": 1, "400": 1, "500": 1, "600": 1, "700": 1,
    "0000": 1, "0001": 1, "0010": 1, "0020": 1, "0030": 1, "0100": 1, "0110": 1, "0200": 1,
}  # fmt: skip


def full_matrix(size, breadth=8):
    """Rows in which no path of a tree meets a token twice under one parent."""
    return [[(breadth * token + rank + 1) % size for rank in range(breadth)] for token in range(size)]


def test_without_ngrams_the_tree_is_the_published_one():
    rows, method = full_matrix(64), Racer(ngram=70, trie_size=100)
    state = observe(method, [(list(range(64)), list(range(64)), rows)])
    tokens, parents = propose(method, state, 5)
    paths = []
    for token, parent in zip(tokens, parents, strict=True):
        above, path = (5, "") if parent == -1 else (tokens[parent], paths[parent])
        paths.append(path + str(rows[above].index(token)))
    assert Counter(map(len, paths)) == {1: 8, 2: 12, 3: 17, 4: 18, 5: 8}
    assert set(paths) == {path + str(rank) for path, count in LOGITS_TREE.items() for rank in range(count)}
    assert len(tokens) == method.num_nodes(8) == 63
    assert Counter(map(len, paths[: len(propose(method, state, 5, 3)[0])])) == {1: 8, 2: 12, 3: 17}


def paths_of(tokens, parents):
    paths = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return paths


def read(method, text):
    *known, root = text
    state = observe(method, [(known, list(range(len(known))), [])])
    state[0].memory.likeliest.clear()
    return paths_of(*propose(method, state, root))


def test_ngrams_continue_what_was_said():
    method = Racer(ngram=4)
    text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 5, 8, 7, 6, 1, 2]
    # "1 2" was followed by 3, then twice by 5 and once by 4.
    assert read(method, text) == [(3,), (3, 5), (3, 4)]
    # One matching token is too little for min_match 2, unless it is 1.
    assert read(method, [*text[:-2], 20, 2]) == []
    assert (3,) in read(Racer(ngram=4, min_match=1), [*text[:-2], 20, 2])


def test_a_chain_follows_the_longest_end_and_then_the_likeliest_tokens():
    text = [7, 1, 2, 5, 30, 1, 2, 6, 31, 1, 2, 6, 32, 7, 1, 2]  # "1 2" was mostly followed by 6, "7 1 2" by 5
    assert read(Racer(ngram=4, chain=True), text) == [(5,)]
    assert read(Racer(ngram=5, chain=True), text) == [(5,), (5, 30)]
    rows, method = full_matrix(64), Racer(ngram=4, chain=True)
    ids = [*range(64), 1, 2, 3]
    state = observe(method, [(ids, list(range(len(ids))), [*rows, *[rows[t] for t in (1, 2, 3)]])])
    tokens, parents = propose(method, state, 4, 6)  # "2 3 4" was followed by 5, then rows lead on
    assert tokens == [5, rows[5][0], rows[rows[5][0]][0], *tokens[3:]]
    assert (len(tokens), parents, method.num_nodes(6)) == (6, [-1, 0, 1, 2, 3, 4], 6)
    assert propose(Racer(chain=True), observe(Racer(), [([1, 2], [0, 1], [])]), 9)[0] == []
    assert Racer(tree_size=4, chain=True).num_nodes(8) == 3


def test_frequent_nodes_come_first():
    # ends of the text: the border counts as one node, so two are left for what follows
    text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 5, 8, 7, 6, 1, 2]
    assert read(Racer(ngram=4, tree_size=4), text) == [(3,), (3, 5)]
    assert read(Racer(ngram=4, tree_size=3), text) == [(3,)]


def test_all_ends_of_the_text_are_looked_up():
    # "7 1 2" was followed by 5, "1 2" elsewhere by 6; both hang from the root, equal tokens share a node.
    text = [7, 1, 2, 5, 30, 1, 2, 6, 31, 1, 2, 5, 32, 7, 1, 2]
    assert set(read(Racer(ngram=4), text)) >= {(5,), (6,), (5, 30), (5, 32), (6, 31)} - {(5, 30)}


def test_ngrams_and_logits_share_the_budget():
    rows = full_matrix(64)
    method = Racer(ngram=4, tree_size=20)
    ids = [*range(64), 1, 2, 3]
    state = observe(method, [(ids, list(range(len(ids))), [*rows, *[rows[t] for t in (1, 2, 3)]])])
    tokens, parents = propose(method, state, 4)
    paths = paths_of(tokens, parents)
    assert len(paths) == len(set(paths)) <= method.num_nodes(8) == 19
    assert {(5,), (5, 6)} <= set(paths)  # from "2 3 4" and "3 4"
    assert set(paths) & {(token,) for token in rows[4]}


def test_the_trie_counts_prefixes_and_forgets_the_oldest_leaf():
    trie = NgramTrie(5)
    trie.insert([1, 2, 3])
    trie.insert([1, 2, 4])
    assert [trie.find(path).count for path in ([1], [1, 2], [1, 2, 3], [1, 2, 4])] == [2, 2, 1, 1]
    assert trie.find([2]) is None
    assert trie.find([1, 2, 3, 4]) is None
    trie.insert([5, 6, 7])  # two nodes too many: 3 was seen first, then 4
    assert len(trie) == 5
    assert trie.find([1, 2, 3]) is trie.find([1, 2, 4]) is None
    assert trie.find([1, 2]).depth == 2
    trie.insert([5, 8, 9])
    assert trie.find([1, 2]) is trie.find([1]) is None
    assert trie.find([5]).count == 2


def test_a_trie_of_any_size_stays_a_trie():
    random = Random(0)
    for capacity in (5, 12, 40):
        trie = NgramTrie(capacity)
        for _ in range(300):
            trie.insert([random.randrange(4) for _ in range(4)])
            reachable, level = 0, [trie.root]
            while level:
                level = [child for node in level for child in node.children.values()]
                assert all(child.parent.children[child.token] is child for child in level)
                assert all(child.parent.count >= child.count or child.depth == 1 for child in level)
                reachable += len(level)
            assert reachable == len(trie) <= capacity


@pytest.mark.parametrize(
    "options",
    [{"tree_size": 1}, {"breadth": 0}, {"min_match": 0}, {"min_match": 10}, {"trie_size": 10}],
    ids=str,
)
def test_values_out_of_range(options):
    with pytest.raises(ValueError, match="out of range"):
        Racer(**options)
