import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiger.decoding.records import Generation, Round
from tiger.evaluation.bootstrap import (
    acceptance_counts,
    acclen_interval,
    paired_difference,
    speedup_interval,
)

counts = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=20).map(np.array)


def test_counts_are_summed_per_prompt():
    rounds = [Round([1, 2], 2, 3, 0), Round([1, 2], 1, 3, 0)]
    assert acceptance_counts([Generation("a", [1], rounds=rounds), Generation("b", [1])]).tolist() == [
        [3, 2],
        [0, 0],
    ]
    assert acceptance_counts([]).shape == (0, 2)


@given(counts)
def test_value_is_the_ratio_of_sums_and_lies_inside(data):
    interval = acclen_interval(data, resamples=200)
    assert interval.value == pytest.approx(data[:, 0].sum() / data[:, 1].sum())
    ratios = data[:, 0] / data[:, 1]
    assert ratios.min() - 1e-9 <= interval.low <= interval.high <= ratios.max() + 1e-9


@given(counts)
def test_a_decoder_does_not_differ_from_itself(data):
    interval = paired_difference(data, data, resamples=100)
    assert (interval.value, interval.low, interval.high) == (0, 0, 0)


def test_pairing_removes_the_spread_between_prompts():
    rng = np.random.default_rng(1)
    rounds = np.full(200, 5)
    base = rng.integers(0, 40, 200)
    left, right = np.stack([base + 1, rounds], 1), np.stack([base, rounds], 1)
    difference = paired_difference(left, right)
    assert difference.value == pytest.approx(0.2)
    assert difference.high - difference.low < 1e-9
    alone = acclen_interval(left)
    assert alone.high - alone.low > 0.3


def test_width_agrees_with_the_normal_approximation():
    rng = np.random.default_rng(0)
    accepted = rng.poisson(20, 400)
    interval = acclen_interval(np.stack([accepted, np.full(400, 5)], 1))
    expected = 2 * 1.96 * (accepted / 5).std() / np.sqrt(400)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.05)


def test_seed_fixes_the_interval():
    data = np.array([[3, 2], [9, 3], [1, 4]])
    assert acclen_interval(data, seed=3) == acclen_interval(data, seed=3)
    assert acclen_interval(data, seed=3, resamples=99) != acclen_interval(data, seed=4, resamples=99)


def test_prompts_without_rounds_do_no_harm():
    assert acclen_interval(np.array([[0, 0], [4, 2]]), resamples=50).value == 2
    assert acclen_interval(np.array([[0, 0]]), resamples=50).high == 0


def test_errors():
    with pytest.raises(ValueError, match="no prompt"):
        acclen_interval(np.zeros((0, 2), dtype=int))
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_difference(np.ones((1, 2), dtype=int), np.ones((2, 2), dtype=int))


def test_speedup_by_hand():
    own, plain = np.array([[10.0, 1.0], [30.0, 2.0]]), np.array([[10.0, 2.0], [30.0, 6.0]])
    found = speedup_interval(own, plain, resamples=200)
    assert found.value == pytest.approx((40 / 3) / (40 / 8))
    assert (found.low, found.high) == (pytest.approx(2), pytest.approx(3))
    with pytest.raises(ValueError, match="got 2 and 1"):
        speedup_interval(own, plain[:1])
