import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.drafting.test_training_free import observe, propose
from tiger.drafting.prompt_lookup import PromptLookup


def proposed(text, depth, ngram=3):
    method = PromptLookup(ngram)
    *read, root = text
    state = observe(method, [(read, list(range(len(read))), [])])
    return propose(method, state, root, depth)


def test_the_longest_ngram_decides():
    #             v trigram          v bigram, later      v unigram, later still
    text = [1, 2, 3, 10, 11, 7, 2, 3, 20, 21, 22, 8, 3, 30, 1, 2, 3]
    assert proposed(text, 4) == ([10, 11, 7, 2], [-1, 0, 1, 2])
    assert proposed(text, 4, ngram=2) == ([20, 21, 22, 8], [-1, 0, 1, 2])
    assert proposed(text, 2, ngram=1) == ([30, 1], [-1, 0])


def test_the_last_of_several_places_decides_and_a_copy_ends_with_the_text():
    assert proposed([5, 1, 5, 2, 5], 8) == ([2, 5], [-1, 0])
    assert proposed([4, 4], 8) == ([4], [-1])


def test_unknown_words_propose_nothing():
    assert proposed([1, 2, 3], 8) == ([], [])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 6))
def test_it_equals_a_search(text, ngram, depth):
    expected = []
    for size in range(min(ngram, len(text)), 0, -1):
        found = [i for i in range(len(text) - size) if text[i : i + size] == text[-size:]]
        if found:
            expected = text[found[-1] + size :][:depth]
            break
    assert proposed(text, depth, ngram)[0] == expected


def test_ngram_out_of_range():
    with pytest.raises(ValueError, match="ngram is 0"):
        PromptLookup(0)
