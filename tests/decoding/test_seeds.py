import pytest
from helpers import prompts, tiny_backbone, tiny_drafter

from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.requests import Requests, request_seed
from tiger.decoding.speculative import SpeculativeDecoder

BATCH = prompts(5)
SAMPLING = Sampling(1.0, top_k=40, top_p=0.95)


def decoder(kind, seed=0):
    if kind == "autoregressive":
        return AutoregressiveDecoder(tiny_backbone(), 10, SAMPLING, seed)
    return SpeculativeDecoder(tiny_backbone(), tiny_drafter("random", kind), 3, 10, SAMPLING, seed)


@pytest.mark.parametrize("kind", ["autoregressive", "suffix", "inline"])
def test_rows_never_depend_on_their_neighbours(kind):
    together = [g.tokens for g in decoder(kind).generate(BATCH)]
    assert [decoder(kind).generate([prompt])[0].tokens for prompt in BATCH] == together
    assert [g.tokens for g in decoder(kind).generate(BATCH[::-1])] == together[::-1]
    assert [g.tokens for g in decoder(kind, seed=1).generate(BATCH)] != together


def test_seeds_are_the_same_on_every_machine():
    assert request_seed(0, "p0") == 1754428855210233
    assert len({request_seed(seed, name) for seed in range(20) for name in "abc"}) == 60


def test_requests_without_an_id_are_named_by_their_place():
    requests = Requests([Prompt("a"), Prompt("b", id="mine")], tiny_backbone(), 4, 0, None)
    assert [answer.id for answer in requests.answers] == ["0", "mine"]


@pytest.mark.parametrize(("batch", "limit"), [([], 4), (BATCH[:1], 0)])
def test_nothing_to_do_is_refused(batch, limit):
    with pytest.raises(ValueError, match="one prompt and one new token or more"):
        AutoregressiveDecoder(tiny_backbone(), limit).generate(batch)


def test_block_size_out_of_range_is_refused():
    with pytest.raises(ValueError, match="block_size is 0"):
        SpeculativeDecoder(tiny_backbone(), tiny_drafter(), 0)
