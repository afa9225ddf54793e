"""Routed heads: exact answers, and the same drafts in training as in decoding."""

import pytest
import torch
from helpers import prompts, tiny_backbone

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, TABLES, p_value
from tests.drafting.head_texts import fit, read_texts
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.routed_head import RoutedHead
from tiger.drafting.heads.saving import load_head, save_head

NEW, BLOCK = 16, 5
BATCH = prompts(4)
FORMS = ("parallel", "autoregressive")


def verifier():
    backbone = tiny_backbone()
    backbone.eos_ids = ()
    return backbone


def head(form, **options):
    torch.manual_seed(3)
    made = RoutedHead(verifier(), form, **{"num_layers": 2, "num_routed": 5} | options).eval()
    with torch.no_grad():
        if form == "parallel":
            made.mask_embedding.normal_()
            made.correction.down.weight.normal_(0, 0.3)
        for parameter in made.router.parameters():
            parameter.mul_(8)
    return made


@pytest.fixture(scope="module")
def expected():
    return AutoregressiveDecoder(verifier(), NEW).generate(BATCH)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_text_is_the_verifiers(expected, form, rows):
    decoder = SpeculativeDecoder(verifier(), head(form), BLOCK, NEW)
    found = [a for i in range(0, 4, rows) for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(found) == tokens(expected)
    for answer, prompt in zip(found, BATCH, strict=True):
        check_records(answer)
        routed = {len(entry.route) for entry in answer.rounds}
        assert routed == ({5} if prompt.images else {0})
    routes = [tuple(entry.route) for answer in found for entry in answer.rounds if entry.route]
    assert len(set(routes)) > len(BATCH)  # chosen anew each round


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_training_drafts_what_decoding_drafts(form, number):
    """Every place of a block, rejected ones too: the text goes on with what was drafted."""
    made = head(form)
    decoded = SpeculativeDecoder(verifier(), made, BLOCK, NEW).generate(BATCH)
    done = [1 + sum(entry.accepted + 1 for entry in answer.rounds[:number]) for answer in decoded]
    drafts = [answer.rounds[number].drafted for answer in decoded]
    texts = [answer.tokens[:n] + draft for answer, n, draft in zip(decoded, done, drafts, strict=True)]
    text, before = read_texts(made, BATCH, texts)
    with torch.no_grad():
        hidden = made.unroll(text, before[:, :1] + torch.tensor(done)[:, None] - 1, BLOCK)[:, 0]
    assert made.score(hidden).argmax(-1).tolist() == drafts


@pytest.mark.parametrize("form", FORMS)
def test_blocks_do_not_see_one_another_nor_later_text(expected, form):
    made = head(form)
    text, before = read_texts(made, BATCH, tokens(expected))
    roots = before + torch.tensor([0, 4, 9])
    with torch.no_grad():
        together = made.unroll(text, roots, BLOCK)
        alone = torch.cat([made.unroll(text, roots[:, i : i + 1], BLOCK) for i in range(3)], dim=1)
        text.features[0, roots[0, 1] + 1 :] += 3
        changed = made.unroll(text, roots, BLOCK)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(changed[0, :2], together[0, :2], atol=1e-5, rtol=1e-4)
    assert (changed[0, 2] - together[0, 2]).abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_every_weight(expected, form):
    made = head(form)
    text, before = read_texts(made, BATCH, tokens(expected))
    made.unroll(text, before, BLOCK).pow(2).sum().backward()
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("form", FORMS)
def test_a_block_sees_the_routed_visual_tokens_only(expected, form):
    made = head(form, num_routed=3)
    text, before = read_texts(made, BATCH, tokens(expected))
    text.features.requires_grad_()
    made.unroll(text, before, BLOCK).pow(2).sum().backward()
    reached = text.features.grad.abs().sum(-1) > 0
    visual = torch.nn.functional.pad(text.visual, (1, 0))[:, :-1]
    assert (reached & visual).sum(1).tolist() == [3, 3, 0, 3]
    places = torch.arange(reached.shape[1])
    assert torch.equal(reached & ~visual, (places <= before) & ~visual)


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_samples_follow_the_verifier(form, sampling):
    toy = TableBackbone(TABLES["verifier"], (EOS,))
    torch.manual_seed(5)
    made = RoutedHead(toy, form, num_layers=1, layers=()).eval()
    made.log_draft_temperature.data.fill_(-0.7)  # any temperature of the drafts is exact
    assert p_value(SpeculativeDecoder(toy, made, 2, LENGTH, sampling), sampling, samples=2000) > 0.01


@pytest.mark.parametrize("form", FORMS)
def test_a_trained_head_is_accepted(expected, form):
    made = head(form)
    first, last = fit(made, BATCH, tokens(expected), depth=3, steps=60, lr=5e-3)
    assert last < 0.5 * first
    answers = SpeculativeDecoder(verifier(), made.eval(), 3, NEW).generate(BATCH)
    rounds = [entry for answer in answers for entry in answer.rounds]
    assert sum(entry.accepted for entry in rounds) > 0.5 * len(rounds)


def test_drafts_are_sampled_from_what_is_reported():
    backbone, made = verifier(), head("parallel")
    decoder = SpeculativeDecoder(backbone, made, BLOCK, NEW, Sampling(1.0), seed=1)
    first, again = decoder.generate(BATCH), decoder.generate(BATCH[::-1])
    assert tokens(first) == tokens(again)[::-1]


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_head_drafts_the_same(tmp_path, form):
    made = head(form)
    save_head(made, tmp_path / "head", step=3)
    loaded = load_head(tmp_path / "head", verifier())
    drafts = [
        [entry.drafted for entry in answer.rounds]
        for drafter in (made, loaded)
        for answer in SpeculativeDecoder(verifier(), drafter, BLOCK, NEW).generate(BATCH)
    ]
    assert drafts[:4] == drafts[4:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "both"}, "form is 'both'"),
        ({"num_routed": 0}, "num_routed 0 must be 1 or more"),
        ({"layers": [99]}, "layers 0 to 2"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(verifier(), RoutedHead(verifier(), **options))
