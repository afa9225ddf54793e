"""Blocks that end early: exact, unbiased, and row by row."""

import pytest
import torch
from helpers import prompts, tiny_backbone, tiny_drafter

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, TABLES, drafter, p_value
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.chain import Chain, end_early
from tiger.drafting.heads.routed_head import RoutedHead
from tiger.drafting.methods import build_method
from tiger.evaluation.runner import benchmark

NEW, BLOCK, THRESHOLD = 16, 6, 0.05
BATCH = prompts(5)


def routed(layout):
    return tiny_drafter(layout=layout, num_routed=5)


def compiled():
    made = routed("suffix")
    made.compile_steps()
    return made


def head(form):
    torch.manual_seed(3)
    return RoutedHead(tiny_backbone(), form, num_layers=1, num_routed=5).eval()


MAKERS = {
    "suffix": lambda: routed("suffix"),
    "inline": lambda: routed("inline"),
    "compiled": compiled,
    "parallel": lambda: head("parallel"),
    "autoregressive": lambda: head("autoregressive"),
}


def early(kind, threshold=THRESHOLD):
    made = MAKERS[kind]()
    end_early(made, threshold)
    return made


@pytest.mark.parametrize("kind", MAKERS)
def test_greedy_text_is_the_verifiers(kind):
    expected = AutoregressiveDecoder(tiny_backbone(), NEW).generate(BATCH)
    decoder = SpeculativeDecoder(tiny_backbone(), early(kind), BLOCK, NEW)
    together = decoder.generate(BATCH)
    alone = [decoder.generate([prompt])[0] for prompt in BATCH]
    assert tokens(together) == tokens(expected)
    lengths = set()
    for answer, one in zip(together, alone, strict=True):
        check_records(answer)
        assert [r.drafted for r in answer.rounds] == [r.drafted for r in one.rounds]
        lengths |= {len(r.drafted) for r in answer.rounds}
    assert len(lengths) > 1
    assert max(lengths) <= BLOCK


@pytest.mark.parametrize("kind", ["suffix", "inline", "parallel", "autoregressive"])
def test_sampled_rows_do_not_depend_on_their_neighbours(kind):
    sampling = Sampling(1.0, top_p=0.95)
    decoder = SpeculativeDecoder(tiny_backbone(), early(kind), BLOCK, NEW, sampling, seed=2)
    together = tokens(decoder.generate(BATCH))
    assert [tokens(decoder.generate([prompt]))[0] for prompt in BATCH] == together
    assert tokens(decoder.generate(BATCH[::-1])) == together[::-1]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_samples_follow_the_verifier(sampling, name):
    made = drafter("sampled", name)
    end_early(made, 0.5)
    decoder = SpeculativeDecoder(TableBackbone(TABLES["verifier"], (EOS,)), made, 3, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=4000) > 0.01


def test_lossy_acceptance_takes_short_chains():
    sampling = Sampling(1.0)
    decoder = SpeculativeDecoder(
        tiny_backbone(), early("suffix"), BLOCK, NEW, sampling, acceptance="typical_lossy"
    )
    for answer in decoder.generate(BATCH):
        check_records(answer)


def test_a_chain_ends_where_its_likeliest_tokens_become_unlikely():
    chances = torch.tensor([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]])
    chain = Chain(Sampling(), [torch.Generator()] * 2, lambda logits: logits, 9, 0.4)
    ends = []
    while not chain.has_ended:
        chain.write(chances.log())
        ends.append(list(chain.going))
    # 0.9^9 = 0.387 is the first power below 0.4, 0.5^2 = 0.25.
    assert chain.tree().lengths == [9, 2]
    assert [going for going, _ in ends] == [True] * 8 + [False]
    assert [going for _, going in ends] == [True] + [False] * 8


def test_without_a_threshold_blocks_are_whole():
    for answer in SpeculativeDecoder(tiny_backbone(), early("suffix", 0.0), BLOCK, NEW).generate(BATCH):
        assert {len(entry.drafted) for entry in answer.rounds} == {BLOCK}


@pytest.mark.parametrize("threshold", [-0.1, 1.0])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(ValueError, match="confidence_threshold is"):
        end_early(routed("suffix"), threshold)


def test_half_precision_ends_where_full_precision_does():
    logits = torch.randn(40, 12, 50, generator=torch.Generator().manual_seed(1)).mul(6).bfloat16()
    lengths = []
    for given in (logits, logits.float()):
        chain = Chain(Sampling(), [torch.Generator()] * 40, lambda row: row, 12, 0.3)
        for place in range(12):
            chain.write(given[:, place])
        lengths.append(chain.tree().lengths)
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 3


def test_a_benchmark_checks_the_threshold_first(tmp_path):
    with pytest.raises(ValueError, match="confidence_threshold is 7"):
        benchmark(decoders={"p": "prompt_lookup"}, confidence_threshold=7.0, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_methods_without_a_model_stay_as_they_are():
    method = build_method({"method": "prompt_lookup"})
    end_early(method, 0.5)
    assert not hasattr(method, "confidence_threshold")
