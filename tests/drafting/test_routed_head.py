"""Routed heads: exact answers, and the same drafts in training as in decoding."""

import pytest
import torch
from helpers import prompts, tiny_backbone
from torch.nn.utils.rnn import pad_sequence

from tests.decoding.test_greedy_equality import check_records, tokens
from tiger.backbones.base import assemble
from tiger.backbones.features import with_features
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.base import HeadText
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
        made.mask_embedding.normal_()
        for parameter in made.router.parameters():
            parameter.mul_(8)
    return made


def read(backbone, made, answers):
    """Prompts and answers as training reads them, and the place before each answer."""
    inputs = [backbone.prepare(prompt) for prompt in BATCH]
    suffixes = [backbone.embed(torch.tensor(answer)) for answer in answers]
    batch = assemble(inputs, backbone.encode(inputs), [backbone.embed(i.ids) for i in inputs], None, suffixes)
    with torch.no_grad():
        _, features = with_features(backbone, made.feature_layers, lambda: backbone.run_assembled(batch))
    ids = [torch.cat([i.ids, torch.tensor(a)]) for i, a in zip(inputs, answers, strict=True)]
    text = HeadText(
        features[:, :-1],
        pad_sequence(ids, batch_first=True)[:, 1:],
        batch.embeddings[:, 1:],
        batch.visual[:, 1:],
        [length - 1 for length in batch.lengths],
    )
    return text, torch.tensor([len(i.ids) - 1 for i in inputs])


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


@pytest.mark.parametrize("form", FORMS)
def test_training_drafts_what_decoding_drafts(expected, form):
    made = head(form)
    answers = tokens(expected)
    decoded = SpeculativeDecoder(verifier(), made, BLOCK, NEW).generate(BATCH)
    text, before = read(verifier(), made, answers)
    compared = 0
    for row, answer in enumerate(decoded):
        done = 1
        for entry in answer.rounds:
            root = before[row] + done - 1
            with torch.no_grad():
                hidden = made.unroll(text, root.expand(len(BATCH), 1), BLOCK)[row, 0]
            best = made.score(hidden).argmax(-1).tolist()
            # Token by token, later drafts follow what was drafted, training what the answer says.
            count = BLOCK if form == "parallel" else entry.accepted + 1
            assert best[:count] == entry.drafted[:count]
            compared += count
            done += entry.accepted + 1
            if done > NEW - BLOCK:
                break
    assert compared > 30


@pytest.mark.parametrize("form", FORMS)
def test_blocks_do_not_see_one_another_nor_later_text(expected, form):
    made = head(form)
    text, before = read(verifier(), made, tokens(expected))
    roots = before[:, None] + torch.tensor([0, 4, 9])
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
    text, before = read(verifier(), made, tokens(expected))
    made.unroll(text, before[:, None], BLOCK).pow(2).sum().backward()
    for name, parameter in made.named_parameters():
        if parameter.requires_grad and (form == "parallel" or name != "mask_embedding"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("form", FORMS)
def test_a_block_sees_the_routed_visual_tokens_only(expected, form):
    made = head(form, num_routed=3)
    text, before = read(verifier(), made, tokens(expected))
    text.features.requires_grad_()
    made.unroll(text, before[:, None], BLOCK).pow(2).sum().backward()
    reached = text.features.grad.abs().sum(-1) > 0
    visual = torch.nn.functional.pad(text.visual, (1, 0))[:, :-1]
    assert (reached & visual).sum(1).tolist() == [3, 3, 0, 3]
    places = torch.arange(reached.shape[1])
    assert torch.equal(reached & ~visual, (places <= before[:, None]) & ~visual)


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
