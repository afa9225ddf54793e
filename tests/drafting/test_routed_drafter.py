import pytest
import torch
from helpers import hf_inputs, picture, prompts, tiny_backbone, tiny_drafter

from tiger.backbones.base import Prompt
from tiger.backbones.cache import BlockCache
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import PhaseTimer
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.routed import RoutedDrafter

WORDS = [[20 + 7 * i, 60 + i, 90 + 3 * i] for i in range(5)]  # no special tokens
SAMPLING = Sampling(1.0)


def start(drafter, requests, sampling=SAMPLING):
    generators = [torch.Generator().manual_seed(i) for i in range(len(requests))]
    return drafter.begin(requests, 40, sampling, generators)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.inference_mode():
        yield


def plain_probabilities(backbone, prompt, answer, count):
    """Distributions of the next tokens by the plain model, uncached, from the processor's own inputs."""
    inputs = hf_inputs(prompt)
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], dim=1)
    more = ids.shape[1] - inputs["input_ids"].shape[1]
    types = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, more))
    images = {key: inputs[key] for key in ("pixel_values", "image_grid_thw") if key in inputs}
    logits = backbone.model(
        input_ids=ids, mm_token_type_ids=types, attention_mask=torch.ones_like(ids), **images
    ).logits
    return logits[0, -count:].softmax(-1)


@pytest.mark.parametrize("rows", [1, 4])
def test_all_rows_inline_are_the_plain_model(rows):
    drafter = tiny_drafter("full", "inline")
    requests = prompts(rows)
    state = start(drafter, requests)
    answers = [[] for _ in requests]
    for sizes in ([1, 3, 2, 1], [2, 1, 1, 3]):
        decided = [words[:n] for words, n in zip(WORDS, sizes[:rows], strict=False)]
        drafter.commit(state, decided)
        answers = [old + new for old, new in zip(answers, decided, strict=True)]
        tree = drafter.propose(state, 3, PhaseTimer())
        for row, prompt in enumerate(requests):
            read = answers[row] + tree.tokens[row, :2].tolist()
            expected = plain_probabilities(drafter.backbone, prompt, read, 3)
            assert (tree.probabilities[row] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_a_draft_temperature_divides_the_logits_of_sampled_drafts(layout):
    drafter, trees = tiny_drafter("routed", layout), {}
    for temperature in (1.0, 0.5):
        drafter.log_draft_temperature.fill_(temperature).log_()
        assert drafter.draft_temperature == temperature
        for sampling in (Sampling(), SAMPLING):
            state = start(drafter, prompts(2), sampling)
            drafter.commit(state, WORDS[:2])
            trees[temperature, sampling.is_greedy] = drafter.propose(state, 3, PhaseTimer())
    assert torch.equal(trees[1.0, True].tokens, trees[0.5, True].tokens)
    squares = trees[1.0, False].probabilities[:, 0] ** 2
    torch.testing.assert_close(trees[0.5, False].probabilities[:, 0], squares / squares.sum(-1, keepdim=True))


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_cached_rounds_equal_a_fresh_start(layout):
    """Whatever was read, rejected and taken back in earlier rounds must leave no trace."""
    drafter = tiny_drafter("routed", layout)
    requests = prompts(3)
    state = start(drafter, requests)
    answers = [[] for _ in requests]
    for sizes in ([1, 1, 1], [3, 1, 2], [1, 2, 3]):
        decided = [words[:n] for words, n in zip(WORDS, sizes, strict=False)]
        answers = [old + new for old, new in zip(answers, decided, strict=True)]
        drafter.commit(state, decided)
        tree = drafter.propose(state, 4, PhaseTimer())
        fresh = start(drafter, requests)
        drafter.commit(fresh, answers)
        again = drafter.propose(fresh, 1, PhaseTimer())
        assert tree.routes == again.routes
        assert (tree.probabilities[:, :1] - again.probabilities).abs().max() < 1e-5


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_rows_draft_as_if_alone(layout):
    drafter = tiny_drafter("routed", layout)
    requests = prompts(4)
    together = start(drafter, requests)
    drafter.commit(together, [words[: 1 + i % 3] for i, words in enumerate(WORDS[:4])])
    drafter.propose(together, 3, PhaseTimer())
    drafter.select_rows(together, [1, 2])
    drafter.commit(together, [[11], [12, 13]])
    tree = drafter.propose(together, 1, PhaseTimer())
    for row, index in enumerate((1, 2)):
        alone = start(drafter, requests[index : index + 1])
        drafter.commit(alone, [WORDS[index][: 1 + index % 3] + [[11], [12, 13]][row]])
        single = drafter.propose(alone, 1, PhaseTimer())
        assert tree.routes[row] == single.routes[0]
        assert (tree.probabilities[row] - single.probabilities[0]).abs().max() < 1e-5


def test_keys_of_the_router_are_made_once_per_request(monkeypatch):
    drafter = tiny_drafter()
    calls = []
    project = drafter.router.project
    monkeypatch.setattr(drafter.router, "project", lambda bank: calls.append(len(bank)) or project(bank))
    state = start(drafter, prompts(2))
    for _ in range(3):
        drafter.commit(state, [[25], [6]])
        drafter.propose(state, 2, PhaseTimer())
    assert calls == [65, 129]  # visual tokens of one and two images, and the global token


def test_the_route_follows_the_scores_and_the_text():
    drafter = tiny_drafter()
    state = start(drafter, prompts(1))
    routes = set()
    for word in range(20, 32):
        drafter.commit(state, [[word]])
        tree = drafter.propose(state, 1, PhaseTimer())
        assert tree.routes[0] == sorted(tree.routes[0])
        assert len(tree.routes[0]) == len(tree.scores[0]) == 8
        routes.add(tuple(tree.routes[0]))
    assert len(routes) > 1


def test_a_text_query_sees_no_picture():
    requests = [Prompt("What is here?", (picture(seed),)) for seed in (1, 2)]
    hidden = {}
    for query in ("visual", "text"):
        drafter = tiny_drafter(query=query)
        state = start(drafter, requests)
        drafter.commit(state, [[25], [25]])
        hidden[query] = state.text.read(drafter.backbone, keep_root=False)
    assert torch.allclose(hidden["text"][0], hidden["text"][1], atol=1e-5)
    assert not torch.allclose(hidden["visual"][0], hidden["visual"][1], atol=1e-3)


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_the_routed_tokens_reach_the_draft(layout):
    """Two routes of the same request give different drafts."""
    drafter = tiny_drafter("random", layout)
    state = start(drafter, [prompts(1)[0]] * 2)  # two generators, two routes
    drafter.commit(state, [[25], [25]])
    tree = drafter.propose(state, 1, PhaseTimer())
    assert tree.routes[0] != tree.routes[1]
    assert (tree.probabilities[0] - tree.probabilities[1]).abs().max() > 1e-4


def test_without_an_image_nothing_is_routed(monkeypatch):
    drafter = tiny_drafter()
    monkeypatch.setattr(drafter.router, "forward", None)
    state = start(drafter, [Prompt("How many?")])
    drafter.commit(state, [[25]])
    tree = drafter.propose(state, 2, PhaseTimer())
    assert (tree.routes, tree.scores) == ([[]], [[]])
    expected = plain_probabilities(drafter.backbone, Prompt("How many?"), [25], 1)
    assert (tree.probabilities[0, 0] - expected[0]).abs().max() < 1e-5


def test_greedy_drafts_carry_no_probabilities():
    drafter = tiny_drafter()
    state = start(drafter, prompts(1), Sampling())
    drafter.commit(state, [[25]])
    assert drafter.propose(state, 2, PhaseTimer()).probabilities is None


def test_phases_are_timed():
    drafter, timer = tiny_drafter(), PhaseTimer()
    state = start(drafter, prompts(1))
    drafter.commit(state, [[25]])
    drafter.propose(state, 2, timer)
    seconds = timer.lap()
    assert seconds["draft"] > 0
    assert seconds["route"] > 0
    assert seconds["verify"] == 0
    assert seconds["other"] >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_routed": 0}, "num_routed is 0"),
        (
            {"selector": "best"},
            "selector 'best'; choose one of routed, full, random, static, sparsevlm, vispruner",
        ),
        ({"layout": "prefix"}, "layout 'prefix'; choose one of suffix, inline"),
        ({"query": "image"}, "query 'image'; choose one of visual, text"),
    ],
)
def test_settings_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        RoutedDrafter(tiny_backbone("drafter", 1, 2), **options)


@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_a_ragged_block_makes_its_masks_once(monkeypatch, block_size):
    verifier, made, rounds = tiny_backbone("verifier"), [], []
    drafter = tiny_drafter()
    mask, propose = BlockCache.mask, drafter.propose

    def spy(self, count, tree=None):
        made.append(self)
        return mask(self, count, tree)

    def counted(state, *args):
        before = len([cache for cache in made if cache is state.text.cache])
        tree = propose(state, *args)
        rounds.append(len([cache for cache in made if cache is state.text.cache]) - before)
        return tree

    monkeypatch.setattr(BlockCache, "mask", spy)
    monkeypatch.setattr(drafter, "propose", counted)
    SpeculativeDecoder(verifier, drafter, block_size, 12).generate(prompts(3))
    assert set(rounds) <= {2, 3}  # pending tokens, routed context, and the whole chain of a ragged batch
