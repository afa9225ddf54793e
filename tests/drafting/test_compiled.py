"""Compiled draft steps draft what plain ones do."""

import pytest
import torch
from helpers import agreeing_drafter, prompts, tiny_backbone, tiny_drafter
from torch._dynamo.utils import counters

from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import PhaseTimer
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.compiled import ROOM, CompiledSteps, check_compiler


def hidden_states(drafter, requests, count, compiled):
    """States [B, count, D] of drafted tokens, behind decided tokens of different numbers."""
    generators = [torch.Generator().manual_seed(i) for i in range(len(requests))]
    state = drafter.begin(requests, 40, Sampling(), generators)
    drafter.commit(state, [[20 + i] * (1 + i % 3) for i in range(len(requests))])
    drafter.propose(state, 3, PhaseTimer(torch.device("cpu")))
    reader = state.text or state.block
    read = compiled.chain(reader, count) if compiled else reader.chain(drafter.backbone, count)
    tokens = torch.arange(30, 30 + len(requests))
    return torch.stack([read(tokens + step) for step in range(count)], 1), reader


@pytest.fixture
def uncompiled(monkeypatch):
    """Leaves the shapes of a compiled step and takes the compiler away; the tests with it are quick."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("rows", [1, 4])
@torch.inference_mode()
def test_steps_of_fixed_shape_give_the_same_states(uncompiled, rows):
    drafter = tiny_drafter()
    plain, first = hidden_states(drafter, prompts(rows), 5, None)
    drafter.compile_steps()
    fixed, second = hidden_states(drafter, prompts(rows), 5, drafter.compiled)
    torch.testing.assert_close(fixed, plain, atol=1e-5, rtol=1e-5)
    assert first.cache.lengths == second.cache.lengths
    assert first.next_positions == second.next_positions
    assert second.cache.capacity % ROOM == 0


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_answers_are_the_same_with_steps_of_fixed_shape(uncompiled, layout, monkeypatch):
    verifier = tiny_backbone(layers=2)
    drafter = agreeing_drafter(verifier, 0.3)
    drafter.layout, drafter.selector, drafter.num_routed = layout, "routed", 8
    requests, steps = prompts(5), []
    decoder = SpeculativeDecoder(verifier, drafter, block_size=4, max_new_tokens=16)
    answers = [decoder.generate(requests)]
    drafter.compile_steps()
    step = drafter.compiled._step
    monkeypatch.setattr(drafter.compiled, "_step", lambda *args: steps.append(1) or step(*args))
    answers.append(decoder.generate(requests))
    assert len(steps) == 3 * max(len(answer.rounds) for answer in answers[1])
    assert [a.tokens for a in answers[0]] == [a.tokens for a in answers[1]]
    rounds = [[r.drafted for answer in batch for r in answer.rounds] for batch in answers]
    assert rounds[0] == rounds[1]
    plain = AutoregressiveDecoder(verifier, 16).generate(requests)
    assert [a.tokens for a in answers[1]] == [a.tokens for a in plain]
    assert any(r.accepted for answer in answers[1] for r in answer.rounds)


@pytest.mark.slow
@torch.inference_mode()
def test_compiled_steps_give_the_same_states_and_are_compiled_once():
    torch._dynamo.reset()
    drafter = tiny_drafter()
    requests = prompts(1)
    plain, _ = hidden_states(drafter, requests, 5, None)
    drafter.compile_steps()
    counters.clear()
    fixed, _ = hidden_states(drafter, requests, 5, drafter.compiled)
    torch.testing.assert_close(fixed, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        drafter.backbone.logits(fixed), drafter.backbone.logits(plain), atol=1e-5, rtol=1e-5
    )
    graphs = counters["stats"]["unique_graphs"]
    assert graphs >= 1
    verifier = tiny_backbone(layers=2)
    decoder = SpeculativeDecoder(verifier, drafter, block_size=4, max_new_tokens=12)
    answers = [decoder.generate([prompt])[0] for prompt in prompts(3)]
    plain = [AutoregressiveDecoder(verifier, 12).generate([prompt])[0] for prompt in prompts(3)]
    assert [a.tokens for a in answers] == [a.tokens for a in plain]
    assert counters["stats"]["unique_graphs"] == graphs, "other requests, tokens or rounds were compiled anew"


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"there is no no-such-compiler\. Install g\+\+"):
        CompiledSteps(tiny_backbone("drafter", layers=1))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs Triton, which is not installed"):
        check_compiler(torch.device("cuda"))
