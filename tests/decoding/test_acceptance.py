import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiger.decoding.acceptance import Sampling, accept_greedy, accept_sampled, draw


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sure(*tokens, size=4):
    """Probabilities [T, V] that put everything on the given tokens."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), size).float()


def test_greedy_counts_the_matching_prefix():
    logits = 5 * sure(1, 2, 3, 0).expand(4, -1, -1)
    drafted = torch.tensor([[1, 2, 3], [1, 2, 0], [1, 0, 3], [0, 2, 3]])
    assert accept_greedy(drafted, logits) == ([3, 2, 1, 0], [0, 3, 2, 1])


def test_sampled_accepts_what_the_verifier_is_sure_of():
    target, proposal = sure(1, 2, 3, 0), torch.full((3, 4), 0.25)
    for seed in range(50):
        assert accept_sampled(torch.tensor([1, 2, 3]), target, proposal, generator(seed)) == (3, 0)
        assert accept_sampled(torch.tensor([1, 2, 3]), target, None, generator(seed)) == (3, 0)


def test_sampled_never_accepts_the_impossible():
    target, proposal = sure(1, 2, 3, 0), torch.full((3, 4), 0.25)
    for seed in range(50):
        assert accept_sampled(torch.tensor([1, 0, 3]), target, proposal, generator(seed)) == (1, 2)
        assert accept_sampled(torch.tensor([0, 2, 3]), target, None, generator(seed)) == (0, 1)


def test_equal_distributions_are_always_accepted():
    target = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).expand(4, -1)
    for seed in range(200):
        accepted, _ = accept_sampled(torch.tensor([0, 1, 2]), target, target[:3], generator(seed))
        assert accepted == 3


def test_acceptance_rate_and_replacement_are_exact():
    # p/q = 0.4 for token 0; the residual is (0, 0.1, 0.2) / 0.3.
    target, proposal = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.2, 0.3]])
    source = generator()
    outcomes = [accept_sampled(torch.tensor([0]), target, proposal, source) for _ in range(6000)]
    accepted = sum(a for a, _ in outcomes) / 6000
    assert accepted == pytest.approx(0.4, abs=0.025)
    replaced = [token for a, token in outcomes if a == 0]
    assert replaced.count(0) == 0
    assert replaced.count(1) / len(replaced) == pytest.approx(1 / 3, abs=0.03)


def test_a_deterministic_proposal_is_replaced_by_another_token():
    target = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    source = generator()
    outcomes = [accept_sampled(torch.tensor([1]), target, None, source) for _ in range(6000)]
    assert sum(a for a, _ in outcomes) / 6000 == pytest.approx(0.3, abs=0.025)
    replaced = [token for a, token in outcomes if a == 0]
    assert replaced.count(1) == 0
    assert replaced.count(0) / len(replaced) == pytest.approx(2 / 7, abs=0.03)


def test_rounding_that_leaves_no_mass_draws_from_the_target():
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    accepted, token = accept_sampled(torch.tensor([0]), target, torch.tensor([[1.0, 1.0]]), generator())
    assert (accepted, token) == (0, 1)


def test_inputs_are_left_alone():
    target, proposal = torch.tensor([[0.2, 0.8], [0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    before = target.clone(), proposal.clone()
    for seed in range(10):
        accept_sampled(torch.tensor([0]), target, proposal, generator(seed))
        accept_sampled(torch.tensor([0]), target, None, generator(seed))
    assert torch.equal(target, before[0])
    assert torch.equal(proposal, before[1])


def test_draw_follows_the_probabilities_and_the_generator():
    probabilities = torch.tensor([0.0, 0.1, 0.6, 0.3])
    source = generator()
    drawn = [draw(probabilities, source) for _ in range(6000)]
    assert drawn.count(0) == 0
    assert drawn.count(2) / 6000 == pytest.approx(0.6, abs=0.025)
    source = generator()
    assert [draw(probabilities, source) for _ in range(100)] == drawn[:100]


LOGITS = st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=9)


@given(LOGITS, st.sampled_from([0.3, 1.0, 2.0]), st.integers(0, 10), st.sampled_from([0.3, 0.9, 1.0]))
def test_sampling_equals_the_warpers_of_transformers(values, temperature, top_k, top_p):
    from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.tensor([values]) + torch.linspace(0, 0.01, len(values))  # no exact ties
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    expected = TopKLogitsWarper(top_k)(None, expected) if top_k else expected
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
    expected = expected.softmax(-1)
    found = Sampling(temperature, top_k, top_p).probabilities(logits)
    assert found.sum().item() == pytest.approx(1, abs=1e-5)
    # The two sort in opposite directions, so a cumulated sum at the edge of top-p may round to either side.
    edge = (expected > 0) != (found > 0)
    assert (
        not edge.any() or (expected + found)[edge].max() < 1e-3 or abs(found.cumsum(-1) - top_p).min() < 1e-5
    )
    if not edge.any():
        assert torch.allclose(found, expected, atol=1e-6)


def test_low_precision_logits_become_full_precision_probabilities():
    assert Sampling(1.0).probabilities(torch.randn(2, 5, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    "options",
    [{"temperature": t} for t in (-0.1, 1e-45, float("nan"), float("inf"))]
    + [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}],
    ids=str,
)
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="out of range"):
        Sampling(**options)


def test_greedy_has_no_probabilities():
    assert Sampling().is_greedy
    with pytest.raises(ValueError, match="temperature above 0"):
        Sampling().probabilities(torch.zeros(3))
