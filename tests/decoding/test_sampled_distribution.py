import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from tests.decoding.table import TableBackbone
from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.routed import RoutedDrafter

VOCAB, LENGTH, EOS, START = 6, 3, 5, "12"
SETTINGS = [Sampling(1.0), Sampling(0.6, top_k=3), Sampling(1.5, top_p=0.8)]


def tables():
    """Logits of a verifier, a drafter that resembles it, and one that prefers what the verifier dislikes."""
    generator = torch.Generator().manual_seed(3)
    target = 1.2 * torch.randn(VOCAB, VOCAB, VOCAB, generator=generator)
    noise = torch.randn(VOCAB, VOCAB, VOCAB, generator=generator)
    return {"verifier": target, "good": target + 0.4 * noise, "bad": -1.5 * target}


TABLES = tables()


def exact(sampling):
    """Probability of every answer, by enumeration in float64, apart from the code under test."""
    table = TABLES["verifier"].double().numpy() / sampling.temperature
    answers = {}

    def next_token(previous, last):
        logits = table[previous, last]
        order = np.argsort(-logits)
        kept = order[: sampling.top_k] if sampling.top_k else order
        weights = np.exp(logits[kept] - logits.max())
        weights /= weights.sum()
        needed = (
            int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1 if sampling.top_p < 1 else len(kept)
        )
        kept, weights = kept[:needed], weights[:needed]
        return zip(kept.tolist(), weights / weights.sum(), strict=True)

    def extend(answer, probability):
        if len(answer) == LENGTH or (answer and answer[-1] == EOS):
            answers[answer] = probability
            return
        context = (*map(int, START), *answer)
        for token, chance in next_token(*context[-2:]):
            extend((*answer, token), probability * chance)

    extend((), 1.0)
    assert sum(answers.values()) == pytest.approx(1)
    return answers


class GreedyDrafter(RoutedDrafter):
    """Drafts its likeliest tokens whatever the sampling, without probabilities."""

    def begin(self, prompts, reserve, sampling, generators):
        return super().begin(prompts, reserve, Sampling(), generators)


def drafter(kind, name):
    return {"sampled": RoutedDrafter, "greedy": GreedyDrafter}[kind](
        TableBackbone(TABLES[name]), "full", "inline"
    )


def p_value(decoder, sampling, samples, rows=500):
    expected = exact(sampling)
    counts = dict.fromkeys(expected, 0)
    batch = [Prompt(START) for _ in range(rows)]
    for seed in range(samples // rows):
        decoder.seed = seed
        for generation in decoder.generate(batch):
            counts[tuple(generation.tokens)] += 1  # a KeyError is an answer that the verifier never gives
    wanted = np.array(list(expected.values())) * samples
    found = np.array(list(counts.values()))
    rare = wanted < 5
    wanted = np.append(wanted[~rare], wanted[rare].sum())
    found = np.append(found[~rare], found[rare].sum())
    kept = wanted > 0
    statistic = ((found - wanted)[kept] ** 2 / wanted[kept]).sum()
    return chi2.sf(statistic, kept.sum() - 1)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["good", "bad"])
@pytest.mark.parametrize("kind", ["sampled", "greedy"])
def test_speculative_samples_follow_the_verifier(sampling, name, kind):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, drafter(kind, name), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=2000) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize(("name", "kind"), [("good", "sampled"), ("bad", "sampled"), ("bad", "greedy")])
def test_fifty_thousand_samples_follow_the_verifier(sampling, name, kind):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, drafter(kind, name), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=50_000) > 0.01


def test_autoregressive_samples_follow_the_verifier():
    decoder = AutoregressiveDecoder(TableBackbone(TABLES["verifier"], (EOS,)), LENGTH, SETTINGS[0])
    assert p_value(decoder, SETTINGS[0], samples=4000) > 0.01


def test_the_check_notices_a_wrong_distribution():
    verifier = TableBackbone(TABLES["good"], (EOS,))
    decoder = AutoregressiveDecoder(verifier, LENGTH, SETTINGS[0])
    assert p_value(decoder, SETTINGS[0], samples=2000) < 1e-4


@pytest.mark.parametrize("block_size", [1, 3, 7])
def test_table_greedy_text(block_size):
    verifier = TableBackbone(TABLES["verifier"])
    batch = [Prompt(f"{a}{b}{c}", id=f"{a}{b}{c}") for a, b, c in itertools.product(range(3), repeat=3)]
    batch += [Prompt("1" * n + "2") for n in range(1, 6)]
    expected = [g.tokens for g in AutoregressiveDecoder(verifier, 12).generate(batch)]
    for name in ("good", "bad"):
        decoder = SpeculativeDecoder(verifier, drafter("sampled", name), block_size, 12)
        assert [g.tokens for g in decoder.generate(batch)] == expected
