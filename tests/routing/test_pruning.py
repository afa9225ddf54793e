"""The choices of SparseVLM and VisPruner against slow loops over plain numbers."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiger.routing.pruning import important_and_diverse, rated, text_raters


def vectors(count, seed, width=3):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def product(left, right):
    return sum(a * b for a, b in zip(left, right, strict=True))


def shares(values):
    high = max(values)
    powers = [math.exp(value - high) for value in values]
    return [power / sum(powers) for power in powers]


def loop_vispruner(importance, tokens, count):
    """One token after the other, in Python's double precision."""
    tokens = [[x / math.sqrt(product(row, row)) for x in row] for row in tokens.double().tolist()]
    order = sorted(range(len(tokens)), key=lambda i: (-importance[i], i))
    if count >= len(tokens):
        return sorted(order)
    kept, rest = order[: count // 2], order[count // 2 :]
    while len(rest) > count - count // 2:
        first, second = rest[0::2], rest[1::2]
        likeness = {i: max(product(tokens[i], tokens[j]) for j in second) for i in first}
        first = sorted(first, key=lambda i: -likeness[i])
        drops = min(8, len(rest) - (count - count // 2), len(first))
        rest = first[drops:] + second
    return sorted(kept + rest)


def loop_raters(visual, text):
    """Which words get more than the mean rate."""
    visual, text = visual.double().tolist(), text.double().tolist()
    rates = [0.0] * len(text)
    for row in visual:
        for place, share in enumerate(shares([product(row, word) for word in text])):
            rates[place] += share / len(visual)
    mean = sum(rates) / len(rates)
    return [rate > mean or rate == max(rates) for rate in rates]


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 40), count=st.integers(1, 45), seed=st.integers(0, 10_000))
def test_vispruner_is_the_slow_loop(size, count, seed):
    importance = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    tokens = vectors(size, seed)
    found = important_and_diverse(importance, tokens, count)
    assert found.tolist() == loop_vispruner(importance.tolist(), tokens, count)
    assert len(found) == min(size, count)


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 12), words=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_raters_and_their_scores_are_the_slow_loop(size, words, seed):
    visual, text = vectors(size, seed), vectors(words, seed + 1)
    raters = loop_raters(visual, text)
    assert text_raters(visual, text).tolist() == raters
    assert any(raters)
    totals = [0.0] * size
    for word, votes in zip(text.double().tolist(), raters, strict=True):
        if votes:
            given = [product(word, row) / math.sqrt(3) for row in visual.double().tolist()]
            totals = [total + share for total, share in zip(totals, shares(given), strict=True)]
    expected = torch.tensor([total / sum(raters) for total in totals])
    torch.testing.assert_close(rated(visual, text), expected)


def test_alike_words_all_rate():
    assert text_raters(vectors(4, 0), torch.ones(3, 3)).all()


def test_vispruner_by_hand():
    """Of six tokens five stay: 0 and 4 as the most important ones; 2 repeats 1, which 5 does not."""
    tokens = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 2.0], [-1.0, -1.0], [1.0, 1.0], [1.0, 0.0]])
    importance = torch.tensor([0.9, 0.6, 0.5, 0.4, 0.8, 0.7])
    assert important_and_diverse(importance, tokens, 5).tolist() == [0, 1, 3, 4, 5]


def test_vispruner_of_one_token_is_a_diverse_one():
    found = important_and_diverse(torch.tensor([0.2, 0.9, 0.1]), vectors(3, 1), 1)
    assert found.tolist() == loop_vispruner([0.2, 0.9, 0.1], vectors(3, 1), 1)
