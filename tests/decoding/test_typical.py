"""Medusa's typical acceptance, the only rule that may change answers."""

import math

import pytest
import torch
from helpers import prompts, tiny_backbone, tiny_drafter

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, TABLES, drafter, p_value
from tiger.decoding.acceptance import Sampling, accept_typical
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import NO_NODE, ROOT
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.methods import build_method

SAMPLING = Sampling(1.0)


def logits(*rows):
    return torch.tensor(rows).log()


def test_the_threshold_falls_with_the_entropy():
    sharp = [0.9, 0.08, 0.02]  # 0.3 exp(-H) is 0.21, above 0.09
    flat = [1 / 30] * 30  # 0.3 exp(-H) is 0.01
    assert 0.3 * math.exp(sum(p * math.log(p) for p in sharp)) > 0.09
    assert accept_typical([1], [ROOT], logits(sharp, sharp), SAMPLING) == ([], 0)
    assert accept_typical([7], [ROOT], logits(flat, flat), SAMPLING)[0] == [0]
    between = [0.91, 0.09 - 1e-3, 1e-3]
    assert accept_typical([1], [ROOT], logits(between, between), SAMPLING)[0] == []
    between = [0.9, 0.09 + 1e-3, 9e-3]
    assert accept_typical([1], [ROOT], logits(between, between), SAMPLING)[0] == [0]


def test_the_longest_and_then_the_likeliest_path_counts():
    even, tail = [0.5, 0.3, 0.2], [0.05, 0.05, 0.9]
    tree = [0, 1, 2, 0, 1], [ROOT, ROOT, 0, 1, 1]  # 0 and 1; 2 below 0; 0 and 1 below 1
    rows = logits(even, tail, even, tail, tail, tail)
    assert accept_typical(*tree, rows, SAMPLING) == ([0, 2], 2)  # 0.5 x 0.9 over 0.3 x 0.5
    rows = logits(even, [0.9, 0.05, 0.05], even, tail, tail, tail)
    assert accept_typical(*tree, rows, SAMPLING) == ([1, 3], 2)  # 0.3 x 0.5 over 0.3 x 0.3
    rows = logits([0.05, 0.05, 0.9], even, even, even, even, even)
    assert accept_typical(*tree, rows, SAMPLING) == ([], 2)
    assert accept_typical([0, 0], [ROOT, NO_NODE], logits(even, tail, even), SAMPLING) == ([0], 2)


def test_answers_no_longer_follow_the_verifier():
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(
        verifier, drafter("greedy", "good"), 2, LENGTH, SAMPLING, acceptance="typical_lossy"
    )
    assert decoder.is_lossy
    assert p_value(decoder, SAMPLING, samples=1000) < 1e-4


@pytest.mark.parametrize("method", [None, "token_recycling"])
def test_chains_and_trees(method):
    batch, verifier = prompts(3), tiny_backbone()
    proposer = tiny_drafter() if method is None else build_method({"method": method})
    decoder = SpeculativeDecoder(verifier, proposer, 4, 12, Sampling(2.0), acceptance="typical_lossy")
    answers = decoder.generate(batch)
    for answer in answers:
        check_records(answer)
    assert sum(entry.accepted for answer in answers for entry in answer.rounds) > 0


def test_greedy_answers_stay_exact():
    batch, verifier = prompts(3), tiny_backbone()
    decoder = SpeculativeDecoder(verifier, tiny_drafter(), 4, 12, acceptance="typical_lossy")
    assert not decoder.is_lossy
    assert tokens(decoder.generate(batch)) == tokens(AutoregressiveDecoder(verifier, 12).generate(batch))


def test_other_rules_are_refused():
    with pytest.raises(ValueError, match="no acceptance 'nucleus'; choose exact or typical_lossy"):
        SpeculativeDecoder(tiny_backbone(), tiny_drafter(), acceptance="nucleus")
