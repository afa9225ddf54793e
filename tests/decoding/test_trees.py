import itertools
from random import Random

import pytest
import torch
from helpers import ending_backbone, prompts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, START, TABLES, p_value
from tests.decoding.trees import ScriptedTrees, TableTrees, parent_lists
from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling, accept_tree_greedy, accept_tree_sampled
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import NO_NODE, Round, path_first
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.base import TokenTree
from tiger.metrics.acceptance import AcceptanceMetrics

CPU = torch.device("cpu")
NEW = 20
BATCH = prompts(4)


def test_rows_of_other_sizes_are_padded():
    tree = TokenTree.of_rows([[5, 6], [], [7]], [[-1, 0], [], [-1]], CPU)
    assert tree.tokens.tolist() == [[5, 6], [0, 0], [7, 0]]
    assert tree.parents.tolist() == [[-1, 0], [NO_NODE] * 2, [-1, NO_NODE]]
    assert TokenTree.of_rows([[], []], [[], []], CPU).ancestors().tolist() == [[[True]]] * 2
    assert TokenTree(torch.zeros(1, 3)).ancestors() is None


def test_everyone_sees_their_ancestors():
    #  root -> 0 -> 2 -> 3,  root -> 1, padding
    seen = TokenTree.of_rows([[9] * 4, [9] * 5], [[-1, -1, 0, 2], [-1] * 5], CPU).ancestors()
    assert seen[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 0, 0, 0, 0, 1],
    ]


@given(parent_lists(40))
def test_ancestors_of_any_tree(parents):
    seen = TokenTree.of_rows([[0] * len(parents)], [parents], CPU).ancestors()[0]
    for node in range(len(parents)):
        path, above = {0, node + 1}, node
        while above != -1:
            path.add(above + 1)
            above = parents[above]
        assert set(seen[node + 1].nonzero()[:, 0].tolist()) == path


def test_greedy_takes_the_longest_path():
    #  root -> 0 -> 1 (deep enough), root -> 2 -> 3 -> 4; tokens 2 and 3 repeat those of 0 and 1
    found = accept_tree_greedy([7, 8, 7, 8, 9], [-1, 0, -1, 2, 3], best=[7, 8, 1, 8, 9, 5])
    assert found == ([2, 3, 4], 5)
    assert accept_tree_greedy([7, 7], [-1, -1], best=[7, 1, 2]) == ([0], 1)
    assert accept_tree_greedy([7, 8], [-1, 0], best=[6, 8, 1]) == ([], 6)
    assert accept_tree_greedy([], [], best=[6]) == ([], 6)
    assert accept_tree_greedy([6, 6], [-1, NO_NODE], best=[6, 3, 6]) == ([0], 3)


def test_siblings_are_tried_against_what_is_left():
    # p = q: the first child is always accepted. p without the first child's token: the second one, drawn from
    # what is left of q, has p / q' = 0.5 / (0.25 / 0.75) > 1.
    source = torch.tensor([0.25, 0.25, 0.5])
    logits = torch.zeros(3, 3)
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        logits[0] = source.log()
        path, _ = accept_tree_sampled([2, 0], [-1, -1], logits, source.expand(2, 3), Sampling(1.0), generator)
        assert path == [0]
        logits[0] = torch.tensor([0.5, 0.5, 0.0]).log()
        path, _ = accept_tree_sampled([2, 0], [-1, -1], logits, source.expand(2, 3), Sampling(1.0), generator)
        assert path == [1]


def test_a_proposal_used_up_leaves_the_target():
    # q has two tokens, both rejected: the bonus is the only token that is left.
    logits = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]).log()
    proposal = torch.tensor([[0.5, 0.5, 0.0]]).expand(2, 3)
    generator = torch.Generator().manual_seed(0)
    assert accept_tree_sampled([0, 1], [-1, -1], logits, proposal, Sampling(1.0), generator) == ([], 2)


TABLE_TEXTS = [Prompt(f"{a}{b}{c}", id=f"{a}{b}{c}") for a, b, c in itertools.product(range(2), repeat=3)]
TABLE_TEXTS += [Prompt("1" * n + "2", id=str(n)) for n in range(1, 6)]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.2, 1.0), st.sampled_from([1, 4]))
def test_any_tree_gives_the_verifiers_text(seed, hidden, rows):
    verifier = TableBackbone(TABLES["verifier"])
    batch = Random(seed).sample(TABLE_TEXTS, rows)
    expected = AutoregressiveDecoder(verifier, 12).generate(batch)
    drafter = ScriptedTrees({g.id: g.tokens for g in expected}, seed, hidden, vocab_size=6)
    found = SpeculativeDecoder(verifier, drafter, 12, 12).generate(batch)
    assert tokens(found) == tokens(expected)
    for generation in found:
        check_records(generation)


@pytest.fixture(scope="module")
def expected():
    return AutoregressiveDecoder(ending_backbone(), NEW).generate(BATCH)


def scripted(answers, seed=0, hidden=0.9):
    return ScriptedTrees({g.id: g.tokens for g in answers}, seed, hidden, most=16)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trees_on_the_tiny_verifier(expected, rows, seed):
    decoder = SpeculativeDecoder(ending_backbone(), scripted(expected, seed, hidden=0.6), 16, NEW)
    found = [a for i in range(0, 4, rows) for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(found) == tokens(expected)
    rounds = [entry for answer in found for entry in answer.rounds]
    assert max(entry.accepted for entry in rounds) >= 3
    assert any(entry.was_rejected for entry in rounds)
    for answer in found:
        check_records(answer)


@pytest.mark.parametrize("place", [0, 1, 4, 9])
def test_end_token_inside_a_path(expected, place):
    eos = expected[0].tokens[place]
    cut = [a.tokens[: a.tokens.index(eos) + 1] if eos in a.tokens else a.tokens for a in expected]
    for seed in range(3):
        drafter = scripted(expected, seed, hidden=1.0)
        found = SpeculativeDecoder(ending_backbone([eos]), drafter, 16, NEW).generate(BATCH)
        assert tokens(found) == cut
        assert drafter.batch_sizes == sorted(drafter.batch_sizes, reverse=True)
        for answer in found:
            check_records(answer)
            assert answer.finish == ("eos" if answer.tokens[-1] == eos else "length")


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_limit_inside_a_path(expected, limit):
    found = SpeculativeDecoder(ending_backbone(), scripted(expected, hidden=1.0), 16, limit).generate(BATCH)
    for answer, whole in zip(found, expected, strict=True):
        assert answer.tokens == whole.tokens[:limit]
        assert sum(entry.accepted + (entry.bonus >= 0) for entry in answer.rounds) == limit - 1
        check_records(answer)


def test_trees_stop_at_the_context_limit(expected, monkeypatch):
    backbone = ending_backbone()
    length = len(backbone.prepare(BATCH[0]).ids)
    monkeypatch.setattr(backbone.model.config.text_config, "max_position_embeddings", length + 7)
    answer = SpeculativeDecoder(backbone, scripted(expected), 16, NEW).generate(BATCH[:1])[0]
    assert (answer.tokens, answer.finish) == (expected[0].tokens[:7], "length")


def test_a_tree_larger_than_the_cache_is_refused(expected):
    drafter = scripted(expected)
    drafter.num_nodes = lambda block_size: 1
    with pytest.raises(ValueError, match=r"The cache holds \d+ tokens but \d+ are needed.*smaller tree"):
        SpeculativeDecoder(ending_backbone(), drafter, 16, 2).generate(BATCH)


SETTINGS = [Sampling(1.0), Sampling(1.0, top_p=0.9)]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["good", "bad"])
@pytest.mark.parametrize("widths", [(3, 2), (1, 4)], ids=str)
def test_sampled_trees_follow_the_verifier(sampling, name, widths):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, TableTrees(TABLES[name], widths, True), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=2000) > 0.01


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_deterministic_trees_follow_the_verifier(sampling, name):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, TableTrees(TABLES[name], (3, 2), False), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=2000) > 0.01


def test_the_check_notices_children_that_were_not_drawn_from_the_proposal():

    class Stale(TableTrees):
        def _children(self, source, width, generator):
            first = int(source.argmax())  # never the way `source` draws
            return [first, *(t for t in super()._children(source, width, generator) if t != first)][:width]

    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, Stale(TABLES["good"], (3, 2), True), 2, LENGTH, SETTINGS[0])
    assert p_value(decoder, SETTINGS[0], samples=2000) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_fifty_thousand_sampled_trees_follow_the_verifier(sampling, name):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, TableTrees(TABLES[name], (3, 2), True), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=50_000) > 0.01


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_a_deterministic_tree_changes_no_drawn_token(sampling):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    batch = [Prompt(START, id=str(i)) for i in range(50)]
    alone = AutoregressiveDecoder(verifier, 12, sampling).generate(batch)
    for name in ("good", "bad"):
        decoder = SpeculativeDecoder(verifier, TableTrees(TABLES[name], (3, 2), False), 2, 12, sampling)
        assert tokens(decoder.generate(batch)) == tokens(alone)


def test_records_put_the_path_first():
    #  root -> 0 -> 2 -> 3, root -> 1 -> 4, padding
    found = path_first([10, 11, 12, 13, 14, 0], [-1, -1, 0, 2, 1, NO_NODE], [1, 4])
    assert found == ([11, 14, 10, 12, 13], [-1, 0, -1, 2, 3])


def test_metrics_count_depths():
    tree = [11, 14, 10, 12, 13], [-1, 0, -1, 2, 3]
    rounds = [
        Round(tree[0], 2, bonus=1, root=0, parents=tree[1]),  # to a leaf: nothing behind it was judged
        Round(tree[0], 1, bonus=1, root=0, parents=tree[1]),  # token 14 was refused
        Round(tree[0], 2, bonus=-1, root=0, parents=tree[1]),
        Round([11, 10], 0, bonus=1, root=0, parents=[-1, -1]),
    ]
    assert [entry.depth for entry in rounds] == [3, 3, 3, 1]
    assert [entry.was_rejected for entry in rounds] == [False, True, False, True]
    answer = AutoregressiveDecoder(TableBackbone(TABLES["verifier"]), 1).generate([Prompt(START)])[0]
    answer.rounds, answer.tokens = rounds, [0] * 9
    metric = AcceptanceMetrics(3)
    metric.update([answer])
    found = metric.compute()
    assert found["acclen"] == 5 / 4
    assert found["p_accept_ge"] == {1: 3 / 4, 2: 2 / 4, 3: 0}
    assert found["accept_rate_by_position"] == {1: 3 / 4, 2: 2 / 3}
    with pytest.raises(ValueError, match="drafted 3 tokens in a row"):
        AcceptanceMetrics(2).update([answer])
