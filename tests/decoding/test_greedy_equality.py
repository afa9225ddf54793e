import itertools

import pytest
import torch
from helpers import hf_generate, prompts, tiny_backbone, tiny_drafter

from tests.decoding.scripted import ScriptedDrafter
from tiger.backbones.base import Prompt
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.routed import RoutedDrafter
from tiger.routing.selectors import ONCE

NEW = 24
BATCH = prompts(5)


def verifier(eos_ids=()):
    backbone = tiny_backbone()
    backbone.eos_ids = tuple(eos_ids)
    return backbone


@pytest.fixture(scope="module")
def expected():
    backbone = tiny_backbone()
    backbone.model.generation_config.eos_token_id = None
    return [hf_generate(backbone, prompt, max_new_tokens=NEW, eos_token_id=None) for prompt in BATCH]


def tokens(generations):
    return [generation.tokens for generation in generations]


def check_records(generation):
    """Rounds must add up to the answer."""
    said = generation.tokens[:1]
    for entry in generation.rounds:
        assert entry.root == said[-1]
        said += entry.drafted[: entry.accepted]
        said += [entry.bonus] if entry.bonus >= 0 else []
        assert set(entry.seconds) == {"route", "draft", "verify", "other"}
        assert all(value >= 0 for value in entry.seconds.values())
    assert said == generation.tokens


def test_reference_is_no_constant_text(expected):
    assert all(len(set(answer)) >= 5 for answer in expected)
    assert len(set(map(tuple, expected))) == len(BATCH)


def test_autoregressive_equals_generate(expected):
    decoder = AutoregressiveDecoder(verifier(), NEW)
    assert tokens(decoder.generate(BATCH)) == expected
    assert [decoder.generate([prompt])[0].tokens for prompt in BATCH] == expected


@pytest.mark.parametrize(("block_size", "limit"), [(1, NEW), (4, NEW), (32, 4)])
@pytest.mark.parametrize("rows", [1, 5])
def test_random_drafter(expected, block_size, limit, rows):
    decoder = SpeculativeDecoder(verifier(), tiny_drafter(), block_size, limit)
    starts = [0, 1, 2] if rows == 1 else [0]
    answers = [a for i in starts for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(answers) == [answer[:limit] for answer in expected[: len(answers)]]
    for answer in answers:
        check_records(answer)
        assert answer.finish == "length"


@pytest.mark.parametrize(
    ("selector", "layout", "query"),
    [
        *itertools.product(["routed", "full", "random", "static"], ["suffix", "inline"], ["visual", "text"]),
        *itertools.product(["sparsevlm", "vispruner"], ["suffix", "inline"], ["visual"]),
    ],
)
def test_every_way_of_routing(expected, selector, layout, query):
    decoder = SpeculativeDecoder(verifier(), tiny_drafter(selector, layout, query), 3, 12)
    answers = decoder.generate(BATCH)
    assert tokens(answers) == [answer[:12] for answer in expected]
    routed = [entry.route for entry in answers[0].rounds]
    assert all(len(route) == (64 if selector == "full" else 8) for route in routed)
    assert all(entry.route == [] for entry in answers[2].rounds)  # no image, nothing to route
    if selector in ONCE:
        assert all(route == routed[0] for route in routed)


@pytest.mark.parametrize("block_size", [1, 4, 32])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_verifier_drafting_for_itself_is_always_accepted(expected, block_size, rows):
    drafter = RoutedDrafter(tiny_backbone(), "full", "inline").eval()
    decoder = SpeculativeDecoder(verifier(), drafter, block_size, NEW)
    answers = [a for i in range(0, 5, rows) for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(answers) == expected
    for answer in answers:
        check_records(answer)
        *whole, last = [entry.accepted for entry in answer.rounds]
        assert whole == [block_size] * len(whole)
        assert last == min(block_size, NEW - 1 - len(whole) * (block_size + 1))


@pytest.mark.parametrize("spoil", [0, 2, 5])
@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_partly_right_drafts(expected, spoil, block_size):
    answers = dict(zip([p.id for p in BATCH], expected, strict=True))
    decoder = SpeculativeDecoder(verifier(), ScriptedDrafter(answers, spoil), block_size, NEW)
    found = decoder.generate(BATCH)
    assert tokens(found) == expected
    accepted = [entry.accepted for generation in found for entry in generation.rounds]
    assert max(accepted) == min(block_size, spoil - 1 if spoil else NEW - 1)
    for generation in found:
        check_records(generation)


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_limit_inside_a_block(expected, limit):
    answers = dict(zip([p.id for p in BATCH], expected, strict=True))
    decoder = SpeculativeDecoder(verifier(), ScriptedDrafter(answers), 4, limit)
    for generation, answer in zip(decoder.generate(BATCH), expected, strict=True):
        assert generation.tokens == answer[:limit]
        assert generation.finish == "length"
        assert sum(entry.accepted + (entry.bonus >= 0) for entry in generation.rounds) == limit - 1
        check_records(generation)


@pytest.mark.parametrize("place", [0, 1, 3, 5, 9])
def test_end_token_at_any_place(expected, place):
    eos = expected[0][place]
    cut = [answer[: answer.index(eos) + 1] if eos in answer else answer for answer in expected]
    answers = dict(zip([p.id for p in BATCH], expected, strict=True))
    for drafter in (ScriptedDrafter(answers), ScriptedDrafter(answers, spoil=3), tiny_drafter()):
        found = SpeculativeDecoder(verifier([eos]), drafter, 4, NEW).generate(BATCH)
        assert tokens(found) == cut
        for generation in found:
            check_records(generation)
            assert generation.finish == ("eos" if generation.tokens[-1] == eos else "length")
    assert tokens(AutoregressiveDecoder(verifier([eos]), NEW).generate(BATCH)) == cut
    assert hf_generate(tiny_backbone(), BATCH[0], max_new_tokens=NEW, eos_token_id=eos) == cut[0]


def test_the_first_of_several_end_tokens_ends(expected):
    first, later = expected[0][4], expected[0][8]
    decoder = SpeculativeDecoder(verifier([later, first]), ScriptedDrafter({"p0": expected[0]}), 16, NEW)
    answer = decoder.generate(BATCH[:1])[0]
    assert answer.tokens == expected[0][: expected[0].index(first) + 1]
    assert answer.rounds[-1].bonus == -1


def test_ended_rows_leave_the_batch(expected):
    eos = expected[0][2]
    answers = dict(zip([p.id for p in BATCH], expected, strict=True))
    drafter = ScriptedDrafter(answers)
    SpeculativeDecoder(verifier([eos]), drafter, 1, NEW).generate(BATCH)
    assert drafter.batch_sizes[0] == 5
    assert drafter.batch_sizes[-1] == sum(eos not in answer for answer in expected) < 5
    assert drafter.batch_sizes == sorted(drafter.batch_sizes, reverse=True)


def test_answers_stop_at_the_context_limit(expected, monkeypatch):
    backbone = verifier()
    length = len(backbone.prepare(BATCH[0]).ids)
    monkeypatch.setattr(backbone.model.config.text_config, "max_position_embeddings", length + 7)
    for decoder in (
        AutoregressiveDecoder(backbone, NEW),
        SpeculativeDecoder(backbone, ScriptedDrafter({"p0": expected[0]}), 4, NEW),
    ):
        answer = decoder.generate(BATCH[:1])[0]
        assert answer.tokens == expected[0][:7]
        assert answer.finish == "length"
    with pytest.raises(ValueError, match=f"tokens, the context holds {length + 7}"):
        AutoregressiveDecoder(backbone, NEW).generate(BATCH[1:2])


def test_huge_limits_allocate_no_more_than_the_context(expected):
    eos = expected[2][3]
    answer = AutoregressiveDecoder(verifier([eos]), 10**9).generate(BATCH[2:3])[0]
    assert answer.tokens == expected[2][: expected[2].index(eos) + 1]


def test_listener_hears_every_token_once(expected):
    heard = {index: [] for index in range(5)}
    decoder = SpeculativeDecoder(verifier(), tiny_drafter(), 4, NEW)
    decoder.generate(BATCH, listener=lambda index, new: heard[index].extend(new))
    assert list(heard.values()) == expected


def test_text_alone_is_a_legal_prompt():
    prompt = Prompt("How many?", id="t")
    decoder = SpeculativeDecoder(verifier(), tiny_drafter(), 4, 8)
    answer = decoder.generate([prompt])[0]
    assert answer.tokens == hf_generate(tiny_backbone(), prompt, max_new_tokens=8, eos_token_id=None)
    assert answer.text == tiny_backbone().tokenizer.decode(answer.tokens, skip_special_tokens=True)


def test_weights_get_no_graph(expected):
    answer = SpeculativeDecoder(verifier(), tiny_drafter(), 4, 4).generate(BATCH[:1])[0]
    assert torch.is_grad_enabled()
    assert answer.tokens == expected[0][:4]
