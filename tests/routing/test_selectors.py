import pytest
import torch

from tiger.routing.router import Router
from tiger.routing.selectors import SELECTORS, select

BANK = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
SCORES = torch.tensor([0.1, 0.9, 0.3, 0.8, 0.2, 0.7, 0.0, 0.5, 0.6])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_highest_scores_win_in_original_order():
    assert select("routed", SCORES, BANK, 4).tolist() == [1, 3, 5, 8]


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("count", [9, 10, 100])
def test_a_bank_of_k_or_fewer_is_shown_whole(selector, count):
    assert select(selector, SCORES, BANK, count, generator()).tolist() == list(range(9))


@pytest.mark.parametrize("selector", SELECTORS)
def test_rows_are_ascending_and_unique(selector):
    rows = select(selector, SCORES, BANK, 5, generator()).tolist()
    assert len(rows) == 5
    assert rows == sorted(set(rows))


def test_full_shows_all_but_the_global_token():
    assert select("full", SCORES, BANK, 2).tolist() == list(range(8))


def test_random_changes_every_round_and_follows_its_generator():
    source = generator()
    rounds = [select("random", SCORES, BANK, 3, source).tolist() for _ in range(50)]
    assert len(set(map(tuple, rounds))) > 20
    assert set().union(*rounds) == set(range(9))
    source = generator()
    assert [select("random", SCORES, BANK, 3, source).tolist() for _ in range(50)] == rounds


def test_static_ignores_the_text():
    bank = torch.zeros(6, 4)
    bank[[1, 4]] = 5.0
    for seed in range(3):
        scores = torch.randn(6, generator=generator(seed))
        assert select("static", scores, bank, 2).tolist() == [1, 4]


@pytest.mark.parametrize(
    ("selector", "count", "message"), [("routed", 0, "num_routed is 0"), ("best", 2, "'best'")]
)
def test_out_of_range(selector, count, message):
    with pytest.raises(ValueError, match=message):
        select(selector, SCORES, BANK, count)


def test_router_scores_are_scaled_products():
    router = Router(4)
    hidden, bank = torch.randn(2, 3, 4), torch.randn(2, 9, 4)
    scores = router(hidden, router.project(bank))
    normed = bank / bank.pow(2).mean(-1, keepdim=True).sqrt()
    expected = torch.einsum("bad,bnd->ban", hidden @ router.query.weight.T, normed @ router.key.weight.T) / 2
    assert scores.shape == (2, 3, 9)
    assert torch.allclose(scores, expected, atol=1e-5)


def test_router_keys_ignore_the_banks_scale():
    router = Router(4)
    assert torch.allclose(router.project(BANK), router.project(100 * BANK), atol=1e-4)
