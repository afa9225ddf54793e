import pytest
import torch

from tiger.backbones.bank import VisualBank
from tiger.routing.router import Router
from tiger.routing.selectors import SELECTORS, Evidence, select

BANK = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
SCORES = torch.tensor([0.1, 0.9, 0.3, 0.8, 0.2, 0.7, 0.0, 0.5, 0.6])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def evidence(scores=SCORES, bank=BANK, source=None):
    importance = torch.rand(len(bank), generator=generator(3))
    text = torch.randn(5, bank.shape[1], generator=generator(4))
    return Evidence(scores, VisualBank(bank, torch.zeros(1, len(bank)), importance=importance), text, source)


def test_the_highest_scores_win_in_original_order():
    assert select("routed", evidence(), 4).tolist() == [1, 3, 5, 8]


@pytest.mark.parametrize("selector", sorted(set(SELECTORS) - {"full"}))
@pytest.mark.parametrize("count", [9, 10, 100])
def test_a_bank_of_k_or_fewer_is_shown_whole(selector, count):
    assert select(selector, evidence(source=generator()), count).tolist() == list(range(9))


@pytest.mark.parametrize("selector", sorted(set(SELECTORS) - {"full"}))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_are_ascending_and_unique(selector, count):
    rows = select(selector, evidence(source=generator()), count).tolist()
    assert len(rows) == count
    assert rows == sorted(set(rows))


def test_full_shows_all_but_the_global_token():
    assert select("full", evidence(), 2).tolist() == list(range(8))


def test_random_changes_every_round_and_follows_its_generator():
    found = evidence(source=generator())
    rounds = [select("random", found, 3).tolist() for _ in range(50)]
    assert len(set(map(tuple, rounds))) > 20
    assert set().union(*rounds) == set(range(9))
    found = evidence(source=generator())
    assert [select("random", found, 3).tolist() for _ in range(50)] == rounds


def test_static_ignores_the_text():
    bank = torch.zeros(6, 4)
    bank[[1, 4]] = 5.0
    for seed in range(3):
        scores = torch.randn(6, generator=generator(seed))
        assert select("static", evidence(scores, bank), 2).tolist() == [1, 4]


def test_sparsevlm_follows_the_text_and_vispruner_the_vision_tower():
    bank = torch.eye(6, 4) * 8
    text = torch.zeros(3, 4)
    text[0, 2] = 9.0  # asks for token 2, the other words for nothing
    plain = VisualBank(bank, torch.zeros(1, 6), importance=torch.tensor([0.1, 0.2, 0.1, 0.9, 0.1, 0.1]))
    assert select("sparsevlm", Evidence(SCORES[:6], plain, text), 1).tolist() == [2]
    assert select("sparsevlm", Evidence(SCORES[:6], plain, text.roll(1, 1)), 1).tolist() == [3]
    assert 3 in select("vispruner", Evidence(SCORES[:6], plain), 2).tolist()


@pytest.mark.parametrize("selector", SELECTORS)
def test_no_token_is_too_few(selector):
    with pytest.raises(ValueError, match="num_routed is 0"):
        select(selector, evidence(), 0)


def test_unknown_policy():
    with pytest.raises(ValueError, match=r"'best'; choose one of routed, full, .*sparsevlm, vispruner"):
        select("best", evidence(), 2)


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
