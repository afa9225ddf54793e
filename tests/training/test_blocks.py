"""The training pass over many blocks must equal real decoding, block by block."""

import pytest
import torch
from helpers import prompts, tiny_backbone

from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import PhaseTimer
from tiger.drafting.blocks import Sampler, read_blocks, read_texts, route, score_blocks
from tiger.drafting.routed import RoutedDrafter

ANCHORS = torch.tensor([[2, 5], [0, 7], [3, 3]])


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone("drafter", seed=1)


def setup(backbone, layout, selector, query):
    torch.manual_seed(0)
    drafter = RoutedDrafter(backbone, selector, layout, query, 8).eval()
    questions = prompts(3)
    answers = [torch.randint(10, 500, (12,)) for _ in questions]
    inputs, banks = drafter.encode(questions)
    return drafter, questions, answers, read_texts(drafter, inputs, banks, answers)


def sample(drafter, texts, routes, group, size, wanted=None):
    """A sampler that has drawn the wanted beginnings of all blocks."""
    uniform = torch.rand(*routes.anchors.shape, group, size, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(drafter, texts, routes, uniform, 1.0)
    wanted = torch.ones_like(uniform).bool().flatten(1, 2) if wanted is None else wanted
    for step in range(size):
        sampler.draw(step, wanted[..., step])
    return sampler


@pytest.mark.parametrize(
    ("layout", "selector", "query"),
    [
        *((a, b, "visual") for a in ("suffix", "inline") for b in ("routed", "full")),
        *((a, "routed", "text") for a in ("suffix", "inline")),
        *(("suffix", name, "visual") for name in ("sparsevlm", "vispruner")),
    ],
)
def test_scored_blocks_equal_decoded_blocks(backbone, layout, selector, query):
    with torch.no_grad():
        drafter, questions, answers, texts = setup(backbone, layout, selector, query)
        routes = route(drafter, texts, ANCHORS)
        for row in range(3):
            for column in range(2):
                state = drafter.begin([questions[row]], 40, Sampling(), [torch.Generator()])
                drafter.commit(state, [answers[row][: ANCHORS[row, column] + 1].tolist()])
                tree = drafter.propose(state, 4, PhaseTimer())
                chosen = routes.rows[row, column][routes.valid[row, column]].tolist()
                assert tree.routes[0] == chosen
                blocks = torch.zeros(3, 2, 2, 4, dtype=torch.long)
                blocks[row, column] = tree.tokens
                scored = score_blocks(drafter, texts, routes, blocks)[row, column]
                assert torch.equal(scored.argmax(-1), tree.tokens.expand(2, -1))


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_gate_changes_no_value_but_reaches_both_router_weights(backbone, layout):
    drafter, _, _, texts = setup(backbone, layout, "routed", "visual")
    routes = route(drafter, texts, ANCHORS)
    blocks = sample(drafter, texts, routes, 2, 4).blocks.view(3, 2, 2, 4)
    logits = score_blocks(drafter, texts, routes, blocks)
    with torch.no_grad():
        torch.testing.assert_close(score_blocks(drafter, texts, routes, blocks), logits, atol=1e-4, rtol=1e-4)
    drafter.zero_grad()
    logits.log_softmax(-1).gather(-1, blocks[..., None]).mean().backward()
    assert drafter.router.query.weight.grad.norm() > 0
    assert drafter.router.key.weight.grad.norm() > 0


def test_branches_do_not_see_one_another(backbone):
    with torch.no_grad():
        drafter, _, _, texts = setup(backbone, "suffix", "routed", "visual")
        routes = route(drafter, texts, ANCHORS)
        blocks = torch.randint(10, 500, (3, 2, 3, 5))
        together = score_blocks(drafter, texts, routes, blocks)
        alone = torch.cat([score_blocks(drafter, texts, routes, blocks[:, :, [g]]) for g in range(3)], dim=2)
        torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


def test_samples_follow_the_scored_distribution(backbone):
    with torch.no_grad():
        drafter, _, _, texts = setup(backbone, "suffix", "routed", "visual")
        routes = route(drafter, texts, ANCHORS[:, :1])
        blocks = sample(drafter, texts, routes, 4000, 1).blocks.view(3, 1, 4000, 1)
        expected = score_blocks(drafter, texts, routes, blocks[:, :, :1])[0, 0, 0, 0].softmax(-1)
        counts = torch.bincount(blocks[0, 0, :, 0], minlength=len(expected)) / blocks.shape[2]
        assert (counts - expected).abs().max() < 0.03


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_sampled_log_probabilities_are_the_scored_ones(backbone, layout):
    with torch.no_grad():
        drafter, _, _, texts = setup(backbone, layout, "routed", "visual")
        routes = route(drafter, texts, ANCHORS)
        sampler = sample(drafter, texts, routes, 2, 5)
        blocks = sampler.blocks.view(3, 2, 2, 5)
        scored = score_blocks(drafter, texts, routes, blocks).log_softmax(-1).gather(-1, blocks[..., None])
        torch.testing.assert_close(sampler.log_q.view(3, 2, 2, 5), scored[..., 0], atol=1e-4, rtol=1e-4)


def test_a_block_does_not_depend_on_how_far_others_are_drawn_or_read(backbone):
    with torch.no_grad():
        drafter, _, _, texts = setup(backbone, "suffix", "routed", "visual")
        routes = route(drafter, texts, ANCHORS)
        lengths = torch.tensor([[5, 1, 0, 3], [0, 0, 0, 0], [2, 5, 5, 1]])
        wanted = torch.arange(5) < lengths[..., None]
        whole, part = (sample(drafter, texts, routes, 2, 5, w) for w in (None, wanted))
        assert torch.equal(part.blocks, whole.blocks * wanted)
        blocks = whole.blocks.view(3, 2, 2, 5)
        hidden = read_blocks(drafter, texts, routes, blocks)
        mask = wanted.view(blocks.shape)
        partly = read_blocks(drafter, texts, routes, blocks * mask, mask)
        torch.testing.assert_close(partly[mask], hidden[mask], atol=1e-4, rtol=1e-4)
