"""Every drafting method on every family: greedy and sampled answers are the verifier's, alone and in a batch.

Small VLMs as drafters are proved in tests/backbones/test_families.py, pruned verifiers in
tests/decoding/test_pruners.py.
"""

import pytest
import torch
from standins import FAMILIES, save_standin

from tests.backbones.test_families import PROMPTS
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.drafting.head_texts import fit
from tiger.backbones.loading import load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.saving import build_head
from tiger.drafting.methods import METHODS, build_method

NEW = 12
BATCH = [PROMPTS[name] for name in ("images of many sizes", "text", "images in the text", "one image")]
SAMPLING = Sampling(1.0, top_p=0.9)
SMALL = {"total_tokens": 14, "depth": 2, "top_k": 3}
HEADS = {
    "medusa": {},
    "specflash": {"num_latents": 5},
    **dict.fromkeys(("eagle2", "eagle3", "vispec"), SMALL),
    "routed_head parallel": {"form": "parallel", "num_layers": 1, "num_routed": 4},
    "routed_head autoregressive": {"form": "autoregressive", "num_layers": 1, "num_routed": 4},
}


class Family:
    """A verifier and what it says alone: greedily, and sampled with seed 3."""

    def __init__(self, name, folder):
        self.verifier = load_backbone(save_standin(name, folder))
        self.verifier.eos_ids = ()
        self.greedy = tokens(AutoregressiveDecoder(self.verifier, NEW).generate(BATCH))
        self.sampled = tokens(AutoregressiveDecoder(self.verifier, NEW, SAMPLING, 3).generate(BATCH))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    return Family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("name", [*METHODS, *HEADS])
def test_answers_are_the_verifiers(family, name):
    if name in METHODS:
        drafter = build_method({"method": name})
    else:
        torch.manual_seed(0)
        drafter = build_head(name.split()[0], family.verifier, **HEADS[name])
        fit(drafter, BATCH, family.greedy, steps=8)
        drafter.eval()
    decoder = SpeculativeDecoder(family.verifier, drafter, 4, NEW)
    together = decoder.generate(BATCH)
    assert tokens(together) == family.greedy
    assert tokens(a for i in (0, 1) for a in decoder.generate(BATCH[i : i + 1])) == family.greedy[:2]
    for answer in together:
        check_records(answer)
    if isinstance(drafter, DraftHead):
        assert sum(entry.accepted for answer in together for entry in answer.rounds) > 0
    if not name.startswith("routed_head"):  # the only one here whose drafts are drawn
        sampled = SpeculativeDecoder(family.verifier, drafter, 4, NEW, SAMPLING, seed=3)
        assert tokens(sampled.generate(BATCH)) == family.sampled
        assert tokens(sampled.generate(BATCH[:1])) == family.sampled[:1]
