import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiger.decoding.records import Generation, Round
from tiger.metrics.acceptance import AcceptanceMetrics

BLOCK = 4


def generation(*rounds, tokens=None):
    """Rounds as (accepted, bonus); the first token comes from prefill."""
    records = [Round([7] * BLOCK, accepted, bonus, root=1) for accepted, bonus in rounds]
    total = 1 + sum(accepted + (bonus >= 0) for accepted, bonus in rounds)
    return Generation("p", [5] * (total if tokens is None else tokens), rounds=records)


def measure(*generations):
    metric = AcceptanceMetrics(BLOCK)
    metric.update(generations)
    return metric.compute()


def test_hand_computed_values():
    # 1 + (3+1) + (0+1) + (4+1) + 2 tokens; the last round ends the answer inside the block.
    result = measure(generation((3, 9), (0, 9), (4, 9), (2, -1)))
    assert result["acclen"] == pytest.approx(9 / 4)
    assert result["mat"] == pytest.approx(13 / 4)
    assert result["p_accept_ge"] == {1: 0.75, 2: 0.75, 3: 0.5, 4: 0.25}
    # Position 1 was judged in all rounds, 3 not where the answer ended at 2, 4 where 3 were kept.
    assert result["accept_rate_by_position"] == {1: 0.75, 2: 1.0, 3: 1.0, 4: 0.5}
    assert (result["answers"], result["answer_tokens"], result["rounds"]) == (1, 13, 4)
    assert result["rounds_per_token"] == pytest.approx(4 / 12)
    assert result["rounds_per_token_paper"] == pytest.approx(4 / 9)
    assert result["rounds_per_answer"] == 4
    assert result["rounds_per_answer_paper"] == pytest.approx(13 / (9 / 4))


def test_autoregressive_answers_take_one_pass_per_token():
    result = measure(generation(tokens=6), generation(tokens=1))
    assert (result["acclen"], result["p_accept_ge"], result["rounds"]) == (0.0, {}, 0)
    assert result["rounds_per_token"] == 1.0
    assert result["verifier_passes"] == 5


def test_nothing_accepted():
    result = measure(generation((0, 9), (0, 9)))
    assert result["acclen"] == 0
    assert math.isinf(result["rounds_per_token_paper"])
    assert result["rounds_per_token"] == 1.0


def test_no_answers_at_all_gives_zeros():
    result = measure()
    assert (result["acclen"], result["rounds_per_token"], result["answers"]) == (0.0, 0.0, 0)


rounds = st.tuples(st.integers(0, BLOCK), st.sampled_from([-1, 9]))
answers = st.lists(st.builds(lambda r: generation(*r), st.lists(rounds, max_size=5)), max_size=8)


@given(answers, answers)
def test_merged_shards_equal_one_pass(left, right):
    shards = [AcceptanceMetrics(BLOCK), AcceptanceMetrics(BLOCK)]
    for shard, part in zip(shards, (left, right), strict=True):
        shard.update(part)
    merged = AcceptanceMetrics(BLOCK)
    for name, reduce in merged._reductions.items():
        setattr(merged, name, reduce(torch.stack([getattr(shard, name) for shard in shards])))
    merged._update_count = 1
    assert merged.compute() == measure(*left, *right)


@given(answers.filter(lambda parts: any(part.rounds for part in parts)))
def test_identities(parts):
    result = measure(*parts)
    survival = list(result["p_accept_ge"].values())
    assert result["acclen"] == pytest.approx(sum(survival))
    assert survival == sorted(survival, reverse=True)
    assert all(0 <= rate <= 1 for rate in result["accept_rate_by_position"].values())
    chances = result["accept_rate_by_position"]
    assert all(chances[n] >= result["p_accept_ge"][n] - 1e-12 for n in chances)


def test_every_state_is_a_sum():
    metric = AcceptanceMetrics(BLOCK)
    assert metric._reductions
    assert {reduce.__name__ for reduce in metric._reductions.values()} == {"dim_zero_sum"}


def test_reset_forgets():
    metric = AcceptanceMetrics(BLOCK)
    metric.update([generation((3, 9))])
    metric.reset()
    metric.update([generation((1, 9))])
    assert metric.compute()["acclen"] == 1


def test_block_size_is_checked():
    with pytest.raises(ValueError, match="block_size is 0"):
        AcceptanceMetrics(0)
    with pytest.raises(ValueError, match="drafted 4 tokens"):
        AcceptanceMetrics(3).update([generation((1, 9))])
