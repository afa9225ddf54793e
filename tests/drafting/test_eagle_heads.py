"""What every recursive head must prove: exact answers, and drafting that equals training."""

import pytest
import torch
from helpers import ending_backbone, fresh_backbone, picture, prompts, tiny_backbone

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, TABLES, p_value
from tests.drafting.head_texts import every_root, fit, read_texts
from tiger.backbones.base import Prompt
from tiger.backbones.cache import BlockCache
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import ROOT
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.base import HeadState
from tiger.drafting.heads.layers import Rope, layer_config
from tiger.drafting.heads.saving import build_head, load_head, save_head

NAMES = ["eagle2", "eagle3", "vispec"]
NEW = 24
BATCH = prompts(4)
SMALL = {"total_tokens": 14, "depth": 2, "top_k": 3}


def new_head(name, backbone=None, **settings):
    torch.manual_seed(5)
    backbone = backbone or ending_backbone()
    if name == "eagle3" and isinstance(backbone, TableBackbone):
        settings["layers"] = ()  # its only layer has no hidden states
    return build_head(name, backbone, **SMALL | settings).eval()


@pytest.fixture(scope="module")
def expected():
    return AutoregressiveDecoder(ending_backbone(), NEW).generate(BATCH)


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def trained(name, expected):
    head = new_head(name)
    before, after = fit(head, BATCH, tokens(expected))
    assert after < before / 2
    return head


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("block_size", [1, 8])
def test_greedy_text_is_the_verifiers(expected, trained, rows, block_size):
    decoder = SpeculativeDecoder(ending_backbone(), trained, block_size, NEW)
    found = [a for i in range(0, 4, rows) for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(found) == tokens(expected)
    for answer in found:
        check_records(answer)
        assert sum(entry.accepted for entry in answer.rounds) > 3
    rounds = [entry for answer in found for entry in answer.rounds]
    assert len({entry.accepted for entry in rounds}) > 1
    assert max(entry.depth for entry in rounds) == min(block_size, 3)


def test_ends_are_those_of_the_verifier(expected, trained):
    eos = expected[1].tokens[6]
    cut = AutoregressiveDecoder(ending_backbone([eos]), NEW).generate(BATCH)
    assert len(set(map(len, tokens(cut)))) > 1
    assert tokens(SpeculativeDecoder(ending_backbone([eos]), trained, 8, NEW).generate(BATCH)) == tokens(cut)


def test_sampled_answers_are_those_drawn_without_a_drafter(trained):
    sampling = Sampling(1.0, top_p=0.9)
    alone = AutoregressiveDecoder(ending_backbone(), NEW, sampling, seed=3).generate(BATCH)
    decoder = SpeculativeDecoder(ending_backbone(), trained, 8, NEW, sampling, seed=3)
    assert tokens(decoder.generate(BATCH)) == tokens(alone)
    assert tokens(decoder.generate(BATCH[::-1])) == tokens(alone)[::-1]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.9)], ids=str)
def test_samples_follow_the_verifier(name, sampling):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, new_head(name, verifier), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=2000) > 0.01


class Watch:
    """A head whose trees and caches are compared with those of a fresh start, row by row and path by path."""

    def __init__(self, head, batch, answers):
        self.head, self.batch, self.answers = head, batch, answers
        self.feature_layers, self.rounds = head.feature_layers, 0
        self.rows, self.said = list(range(len(batch))), [[] for _ in batch]
        for name in ("num_nodes", "begin", "observe"):
            setattr(self, name, getattr(head, name))

    def commit(self, state, decided):
        for row, ids in zip(self.rows, decided, strict=True):
            self.said[row] += ids
        self.head.commit(state, decided)

    def select_rows(self, state, rows):
        self.rows = [self.rows[row] for row in rows]
        self.head.select_rows(state, rows)

    def propose(self, state, block_size, timer):
        tree = self.head.propose(state, block_size, timer)
        layer = state.cache.layers[0]
        for row, index in enumerate(self.rows):
            prompt, said = self.batch[index], self.said[index]
            wanted, keys = fresh(self.head, prompt, said, block_size)
            assert (tree.tokens[row].tolist(), tree.parents[row].tolist()) == wanted
            assert keys.shape[1] == state.cache.lengths[row]
            assert (layer.keys[row, :, : keys.shape[1]] - keys).abs().max() < 1e-4
        self.rounds += 1
        return tree


def fresh(head, prompt, said, block_size):
    """The tree behind a text, every path read alone by `unroll`; and the keys of the text."""
    text, first = read_texts(head, [prompt], [said])
    state = HeadState(Sampling(), [], 0, cache=BlockCache(1, 1, 400), rows=[None])
    head.draft(state, text, 1)

    def children(path):
        longer, _ = read_texts(head, [prompt], [said + path])
        hidden = head.unroll(longer, first + len(said) - 1, len(path) + 1)[0, 0, -1]
        found = head.score(hidden).log_softmax(-1).topk(head.tree.top_k)
        ids = found.indices if head.draft_ids is None else head.draft_ids[found.indices]
        return list(zip(ids.tolist(), found.values.tolist(), strict=True))

    pool = [((token,), score, ROOT) for token, score in children([])]
    beam = list(range(len(pool)))
    for _ in range(min(block_size, head.tree.depth + 1) - 1):
        start = len(pool)
        for place in beam:
            path, score, _ = pool[place]
            pool += [((*path, token), score + more, place) for token, more in children(list(path))]
        beam = sorted(range(start, len(pool)), key=lambda place: -pool[place][1])[: head.tree.top_k]
    best = sorted(range(len(pool)), key=lambda place: -pool[place][1])[: head.tree.num_nodes]
    best.sort()
    parents = [pool[place][2] for place in best]
    above = [ROOT if parent == ROOT else best.index(parent) for parent in parents]
    keys = state.cache.layers[0].keys[0, :, : state.cache.lengths[0]]
    return ([pool[place][0][-1] for place in best], above), keys


def test_drafting_equals_unrolling_from_the_verifiers_features(expected, trained):
    batch = BATCH[:3]
    watch = Watch(trained, batch, expected)
    found = SpeculativeDecoder(ending_backbone(), watch, 3, 10).generate(batch)
    assert tokens(found) == [answer[:10] for answer in tokens(expected)[:3]]
    assert watch.rounds > 2
    assert max(entry.accepted for answer in found for entry in answer.rounds) > 1


def test_roots_do_not_see_one_another(expected, trained):
    answers = tokens(expected)
    text, first = read_texts(trained, BATCH, answers)
    roots = every_root(first, answers, 3)
    with torch.no_grad():
        together = trained.unroll(text, roots, 3)
        assert together.shape == (4, NEW - 3, 3, 192)
        for root in (0, 5, NEW - 4):
            cut = [answer[: root + 3] for answer in answers]
            alone = trained.unroll(read_texts(trained, BATCH, cut)[0], first + root, 3)
            assert (together[:, root : root + 1] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("batch", [BATCH, BATCH[2:3]], ids=["mixed", "text"])
def test_every_weight_learns(name, expected, batch):
    head = new_head(name)
    answers = [expected[BATCH.index(prompt)].tokens for prompt in batch]
    text, first = read_texts(head, batch, answers)
    head.score(head.unroll(text, every_root(first, answers, 2), 2)).logsumexp(-1).sum().backward()
    assert [key for key, value in head.named_parameters() if value.grad is None] == []


def test_a_saved_head_drafts_alike(trained, expected, tmp_path):
    save_head(trained, tmp_path)
    loaded = load_head(tmp_path, ending_backbone())
    assert loaded.settings == trained.settings
    first, second = (
        SpeculativeDecoder(ending_backbone(), head, 8, NEW).generate(BATCH) for head in (trained, loaded)
    )
    assert [[e.drafted for e in a.rounds] for a in first] == [[e.drafted for e in a.rounds] for a in second]
    with pytest.raises(ValueError, match="is a head for another verifier: it needs num_layers 3, not 2"):
        load_head(tmp_path, tiny_backbone(layers=2))


def test_positions_stay_exact_in_half_precision(name, tmp_path):
    head = new_head(name)
    exact = Rope(layer_config(head.verifier)).inv_freq
    save_head(head, tmp_path)
    loaded = load_head(tmp_path, fresh_backbone().to(torch.bfloat16))
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.rope.inv_freq, exact)


def test_half_precision_answers(name):
    verifier = fresh_backbone().to(torch.bfloat16)
    verifier.eos_ids = ()
    head = new_head(name, verifier).to(torch.bfloat16)
    found = SpeculativeDecoder(verifier, head, 4, 8).generate([Prompt("What?", (picture(3),))])
    assert len(found[0].tokens) == 8


def test_unknown_settings_are_refused(name):
    with pytest.raises(ValueError, match=f"Head '{name}' cannot take .*'width'"):
        build_head(name, ending_backbone(), width=3)
