import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiger.training.losses import DIVERGENCES, chunked, guidance, js, kl, overlap, reverse_kl, tv

seeds = st.integers(0, 10_000)


def logits(seed: int, rows: int = 5, size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator) * 2, torch.randn(rows, size, generator=generator) * 2


@given(seeds)
def test_tv_is_one_minus_acceptance(seed):
    p, q = logits(seed)
    half_l1 = 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum(-1)
    torch.testing.assert_close(tv(p, q), half_l1)
    torch.testing.assert_close(overlap(p, q), 1 - half_l1)


@given(seeds)
def test_divergences_are_non_negative_and_vanish_for_equals(seed):
    p, q = logits(seed)
    for name in ("kl", "reverse_kl", "js", "tv", "neg_log_acceptance"):
        assert (DIVERGENCES[name](p, q) >= -1e-6).all()
        assert DIVERGENCES[name](p, p).abs().max() < 1e-5
    torch.testing.assert_close(kl(p, q), reverse_kl(q, p))
    torch.testing.assert_close(js(p, q), js(q, p))


def test_kl_equals_torch():
    p, q = logits(0)
    expected = torch.nn.functional.kl_div(
        q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="none"
    )
    torch.testing.assert_close(kl(p, q), expected.sum(-1))


@pytest.mark.parametrize("name", list(DIVERGENCES))
def test_chunks_change_neither_value_nor_gradient(name):
    torch.manual_seed(0)
    teacher_head, student_head = torch.nn.Linear(6, 11), torch.nn.Linear(4, 11)
    teacher, student = torch.randn(10, 6), torch.randn(10, 4, requires_grad=True)
    sizes, results = [], []

    def values(teacher, student):
        sizes.append(len(student))
        return DIVERGENCES[name](teacher_head(teacher), student_head(student))

    for elements in (110, 33):
        value = chunked(values, teacher, student, vocab_size=11, max_elements=elements)
        results.append((value, torch.autograd.grad(value.sum(), [student, student_head.weight])))
        sizes.append(0)
    torch.testing.assert_close(results[0], results[1])
    assert sizes == [10, 0, 3, 3, 3, 1, 1, 3, 3, 3, 0]  # the backward pass makes the logits again, last first
    with torch.no_grad():
        assert torch.equal(chunked(values, teacher, student, vocab_size=11, max_elements=33), results[1][0])


def test_guidance_ignores_missing_tokens_and_is_least_at_the_target():
    attention = torch.tensor([[0.2, 0.6, 0.0]])
    missing = torch.tensor([[0.0, 0.0, float("-inf")]])
    best = torch.tensor([[0.25, 0.75]]).log()
    entropy = -(torch.tensor([0.25, 0.75]) * best).sum()
    torch.testing.assert_close(
        guidance(torch.cat([best, torch.tensor([[float("-inf")]])], 1), attention)[0], entropy
    )
    assert guidance(missing, attention)[0] > entropy
