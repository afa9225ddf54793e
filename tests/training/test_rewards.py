import itertools

import pytest
import torch

from tiger.training.rewards import Rewards, acceptance, advantages, rewards


def test_rewards_of_a_hand_made_block():
    chance = torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    tests = torch.rand_like(chance)
    assert rewards("accepted_prefix", chance, tests).total.tolist() == [2.0]
    assert rewards("binary", chance, tests).total.tolist() == [1.0]
    assert rewards("token_agreement", chance, tests).total.tolist() == [3.0]
    assert rewards("accepted_prefix", chance, tests).alive.tolist() == [[1.0, 1.0, 1.0, 0.0]]
    half = torch.tensor([[0.5, 0.5]])
    assert rewards("expected_prefix", half, half).total.tolist() == [0.75]


def test_expected_prefix_is_the_mean_of_the_sampled_test():
    chance = torch.tensor([0.9, 0.6, 0.8]).expand(200_000, 3)
    sampled = rewards("accepted_prefix", chance, torch.rand(chance.shape)).total.mean()
    assert sampled == pytest.approx(rewards("expected_prefix", chance[0], chance[0]).total.item(), abs=0.01)


def test_acceptance_by_argmax_and_by_ratio():
    teacher = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]]).log()
    blocks = torch.tensor([[0, 1]])
    log_q = torch.tensor([[0.5, 0.4]]).log()
    assert acceptance(teacher, log_q, blocks, "greedy").tolist() == [[1.0, 0.0]]
    torch.testing.assert_close(acceptance(teacher, log_q, blocks, "sampling"), torch.tensor([[1.0, 0.25]]))


def test_paper_normalisation_gives_every_token_the_block_reward():
    terms = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    weight = advantages(Rewards(terms, torch.ones_like(terms)), "block", epsilon=0.0)
    expected = torch.tensor([1.0, 0.0, -1.0]) / torch.tensor([2.0, 1.0, 0.0]).std(unbiased=False)
    torch.testing.assert_close(weight, expected[:, None].expand(3, 2))


def test_tied_group_gives_no_gradient():
    terms = torch.ones(4, 3)
    for credit in ("block", "prefix"):
        assert advantages(Rewards(terms, torch.ones_like(terms)), credit).abs().max() == 0


@pytest.mark.parametrize("credit", ["block", "prefix"])
def test_a_group_that_earns_the_same_with_different_tokens_gives_no_gradient(credit):
    chance = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    reward = rewards("token_agreement", chance, torch.full_like(chance, 0.5))
    assert reward.total.tolist() == [2.0, 2.0]
    assert advantages(reward, credit).abs().max() == 0


def test_dead_tokens_get_no_prefix_credit():
    chance = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    weight = advantages(rewards("accepted_prefix", chance, torch.rand_like(chance)), "prefix")
    assert weight[0, 2] == 0
    assert weight[0, 1] < 0 < weight[1, 1]


@pytest.mark.parametrize("test", ["sampling", "greedy"])
@pytest.mark.parametrize("name", ["accepted_prefix", "expected_prefix"])
def test_block_and_prefix_credit_have_the_same_expected_gradient(name, test):
    """Enumerates every block and every outcome of the test of a two-step, three-word model."""
    torch.manual_seed(1)
    p = torch.randn(4, 3)  # verifier logits after the root and after each first token
    theta = torch.randn(4, 3, requires_grad=True)
    gradients = {}
    for credit in ("block", "prefix"):
        total = torch.zeros(())
        for first, second in itertools.product(range(3), repeat=2):
            states = torch.tensor([0, 1 + first])
            block = torch.tensor([first, second])
            log_q = theta[states].log_softmax(-1).gather(-1, block[:, None])[:, 0]
            probability = log_q.sum().exp().detach()
            chance = acceptance(p[states][None], log_q[None], block[None], test)
            for outcome in itertools.product((0.0, 1.0), repeat=2):
                passed = torch.tensor([outcome])
                weight = (passed * chance + (1 - passed) * (1 - chance)).prod()
                # expected_prefix has no noise of the test: use its own chances as the outcome.
                reward = rewards("expected_prefix", chance if name == "expected_prefix" else passed, passed)
                ahead = reward.terms.flip(-1).cumsum(-1).flip(-1)
                credited = reward.total[:, None].expand(1, 2) if credit == "block" else ahead
                total = total + probability * weight * (credited.detach() * log_q).sum()
        gradients[credit] = torch.autograd.grad(total, theta)[0]
    torch.testing.assert_close(gradients["block"], gradients["prefix"], atol=1e-6, rtol=1e-5)
    assert gradients["block"].abs().max() > 1e-3
