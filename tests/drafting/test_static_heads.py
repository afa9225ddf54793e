"""What every head with a static tree must prove: exact answers, and drafts that are those of its training."""

import itertools

import pytest
import torch
from helpers import ending_backbone, prompts

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, TABLES, p_value
from tests.drafting.head_texts import fit, read_texts
from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.saving import build_head, is_head, load_head, save_head

NEW = 24
BATCH = prompts(4)  # one image, two images, text only, one image
HEADS = {
    "medusa": {},
    "medusa own": {"own_vocabulary": True},
    "specflash": {},
    "specflash compressed": {"num_latents": 5},
}


def build(name, verifier):
    torch.manual_seed(0)
    return build_head(name.split()[0], verifier, **HEADS[name]).eval()


@pytest.fixture(scope="module")
def expected():
    return AutoregressiveDecoder(ending_backbone(), NEW).generate(BATCH)


@pytest.fixture(scope="module")
def trained(expected):
    """Heads that have learnt the first three answers, by name."""
    heads = {name: build(name, ending_backbone()) for name in HEADS}
    for head in heads.values():
        fit(head, BATCH[:3], tokens(expected)[:3], depth=3, steps=12)
    return heads


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_text_is_the_verifiers(expected, trained, name, rows):
    decoder = SpeculativeDecoder(ending_backbone(), trained[name], 8, NEW)
    found = [a for i in range(0, 4, rows) for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(found) == tokens(expected)
    for answer in found:
        check_records(answer)
    assert sum(entry.accepted for answer in found[:3] for entry in answer.rounds) > 0


@pytest.mark.parametrize("name", HEADS)
def test_rows_that_end_leave_the_others_alone(expected, trained, name):
    eos = expected[1].tokens[6]
    cut = AutoregressiveDecoder(ending_backbone([eos]), NEW).generate(BATCH)
    assert len(set(map(len, tokens(cut)))) > 1
    assert tokens(
        SpeculativeDecoder(ending_backbone([eos]), trained[name], 8, NEW).generate(BATCH)
    ) == tokens(cut)


@pytest.mark.parametrize("name", HEADS)
def test_sampled_answers_are_those_drawn_without_a_drafter(trained, name):
    sampling = Sampling(1.0, top_p=0.9)
    alone = AutoregressiveDecoder(ending_backbone(), NEW, sampling, seed=3).generate(BATCH)
    decoder = SpeculativeDecoder(ending_backbone(), trained[name], 8, NEW, sampling, seed=3)
    assert tokens(decoder.generate(BATCH)) == tokens(alone)
    assert tokens(decoder.generate(BATCH[::-1])) == tokens(alone)[::-1]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("name", ["medusa", "specflash"])
def test_samples_follow_the_verifier(name, sampling):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, build(name, verifier), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=2000) > 0.01


@pytest.mark.parametrize("name", ["medusa", "specflash"])
def test_small_vocabularies_and_every_block_size(name):
    verifier = TableBackbone(TABLES["verifier"])
    head = build(name, verifier)
    batch = [Prompt(f"{a}{b}" * (1 + a), id=f"{a}{b}") for a, b in itertools.product(range(3), repeat=2)]
    expected = AutoregressiveDecoder(verifier, 20).generate(batch)
    for block_size in (1, 3, 12):
        found = SpeculativeDecoder(verifier, head, block_size, 20).generate(batch)
        assert tokens(found) == tokens(expected)
        rounds = [entry for answer in found for entry in answer.rounds]
        assert max(entry.depth for entry in rounds) == min(block_size, head.settings.get("num_offsets", 4))
        assert {len(entry.drafted) for entry in rounds} == {head.num_nodes(block_size)}


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_scored_as_in_training(monkeypatch, trained, name):
    head, drafted, depth = trained[name], [], 3
    score = head.score
    monkeypatch.setattr(head, "score", lambda hidden: drafted.append(score(hidden)) or drafted[-1])
    answers = SpeculativeDecoder(ending_backbone(), head, depth, NEW).generate(BATCH)
    monkeypatch.undo()
    text, first = read_texts(head, BATCH, tokens(answers))
    for row, answer in enumerate(answers):
        decided = torch.tensor([0] + [entry.accepted + 1 for entry in answer.rounds[:-1]]).cumsum(0)
        roots = (first[row] + decided).expand(len(BATCH), -1)
        with torch.no_grad():
            unrolled = head.score(head.unroll(text, roots, depth))[row]
        for number, logits in enumerate(unrolled):
            place = sum(len(other.rounds) > number for other in answers[:row])  # among the rows still there
            torch.testing.assert_close(drafted[number][place], logits, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_training_has_no_look_ahead(trained, name):
    """What a root's predictions depend on ends with the root."""
    head = trained[name]
    text, first = read_texts(head, BATCH[:2], [[5, 6, 7, 8]] * 2)
    other, _ = read_texts(head, BATCH[:2], [[5, 6, 9, 10]] * 2)
    roots = first + torch.arange(2)
    with torch.no_grad():
        torch.testing.assert_close(head.unroll(text, roots, 2), head.unroll(other, roots, 2))
        assert not torch.equal(head.unroll(text, roots + 2, 2), head.unroll(other, roots + 2, 2))


@pytest.mark.parametrize("name", HEADS)
def test_saved_heads_draft_alike(tmp_path, trained, name):
    head = trained[name]
    save_head(head, tmp_path)
    assert is_head(tmp_path)
    loaded = load_head(tmp_path, ending_backbone())
    assert type(loaded) is type(head)
    assert loaded.settings == head.settings
    rounds = [
        SpeculativeDecoder(ending_backbone(), h, 4, NEW).generate(BATCH[:1])[0].rounds for h in (head, loaded)
    ]
    assert [entry.drafted for entry in rounds[0]] == [entry.drafted for entry in rounds[1]]
    with pytest.raises(ValueError, match="is a head for another verifier: it needs hidden_size 192, not 12"):
        load_head(tmp_path, TableBackbone(TABLES["verifier"]))


@pytest.mark.parametrize("name", HEADS)
def test_only_the_heads_own_weights_are_trained(trained, name):
    verifier = {id(parameter) for parameter in trained[name].verifier.parameters()}
    assert verifier.isdisjoint(map(id, trained[name].parameters()))
    unused = {key for key, parameter in trained[name].named_parameters() if parameter.grad is None}
    assert unused == ({"latents"} if name == "specflash" else set())  # no image has more tokens than latents


@pytest.mark.parametrize(("name", "most"), [("medusa", 4), ("specflash", 5)])
def test_a_depth_beyond_the_head_is_refused(trained, name, most):
    text, first = read_texts(trained[name], BATCH[:1], [[5] * 9])
    with pytest.raises(ValueError, match=f"has {most} .* and cannot predict {most + 1} tokens"):
        trained[name].unroll(text, first, most + 1)
