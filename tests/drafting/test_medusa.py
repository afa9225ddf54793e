import pytest
import torch
from helpers import prompts, tiny_backbone

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import tokens
from tests.decoding.test_sampled_distribution import TABLES
from tests.drafting.head_texts import every_root, fit, read_texts
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.saving import build_head, load_head, save_head
from tiger.drafting.heads.trees import StaticTree, likeliest_paths, rank_accuracies

BATCH = prompts(2)


@pytest.mark.parametrize("own", [False, True])
def test_an_untrained_head_says_what_the_verifier_said(own):
    verifier = tiny_backbone()
    head = build_head("medusa", verifier, own_vocabulary=own)
    text, first = read_texts(head, BATCH, [[5, 6, 7]] * 2)
    with torch.no_grad():
        logits = head.score(head.unroll(text, first, 4))
        said = verifier.logits(text.features.gather(1, first[..., None].expand(-1, -1, 192)))
    torch.testing.assert_close(logits, said[:, :, None].expand_as(logits))


def test_heads_are_counted_in_parameters():
    verifier = tiny_backbone()
    shared, own = (
        sum(p.numel() for p in build_head("medusa", verifier, own_vocabulary=own).parameters())
        for own in (False, True)
    )
    assert shared == 4 * (192 * 192 + 192)
    assert own == shared + 4 * 192 * verifier.vocab_size


def test_each_head_scores_with_its_own_vocabulary():
    head = build_head("medusa", tiny_backbone(), num_heads=3, own_vocabulary=True)
    with torch.no_grad():
        head.vocabularies.mul_(torch.tensor([1.0, 2.0, 3.0])[:, None, None])
        logits = head.score(hidden := torch.randn(2, 5, 3, 192))
        depths = torch.tensor([2, 0, 2, 1])
        torch.testing.assert_close(
            head.score(hidden[0, [0, 1, 4, 3], depths], depths), logits[0, [0, 1, 4, 3], depths]
        )
        logits = head.score(torch.ones(2, 5, 3, 192))
    torch.testing.assert_close(logits[..., 1, :], 2 * logits[..., 0, :])
    torch.testing.assert_close(logits[..., 2, :], 3 * logits[..., 0, :])
    with pytest.raises(ValueError, match="vocabularies of their own; give score the depths"):
        head.score(torch.ones(3, 192))


def test_a_tree_of_measured_accuracies(tmp_path):
    answers = AutoregressiveDecoder(verifier := tiny_backbone(), 16).generate(BATCH)
    head = build_head("medusa", verifier)
    fit(head, BATCH, said := tokens(answers), depth=4, steps=15)
    text, first = read_texts(head, BATCH, said)
    targets = torch.tensor(said).unfold(1, 4, 1)[:, 1:]
    with torch.no_grad():
        logits = head.score(head.unroll(text, every_root(first, said, 4), 4))
    accuracies = rank_accuracies(logits, targets, torch.ones_like(targets, dtype=torch.bool))
    assert (accuracies >= 0).all()
    assert 0 < accuracies[0].sum() <= 1
    tree = likeliest_paths(accuracies.tolist(), 9)
    measured = build_head("medusa", verifier, tree=tree)
    measured.load_state_dict(head.state_dict())
    save_head(measured, tmp_path)
    loaded = load_head(tmp_path, verifier)
    assert loaded.tree == measured.tree == StaticTree.of(tree, 4, 10)
    assert tokens(SpeculativeDecoder(verifier, loaded, 4, 16).generate(BATCH)) == said


def test_nodes_are_those_of_block_and_heads():
    verifier = tiny_backbone()
    assert [build_head("medusa", verifier).num_nodes(size) for size in (1, 2, 4, 9)] == [10, 38, 63, 63]
    assert build_head("medusa", verifier, num_heads=2).num_nodes(9) == 38
    assert build_head("medusa", TableBackbone(TABLES["verifier"])).num_nodes(1) == 6


def test_unusable_settings_are_refused():
    verifier = tiny_backbone()
    with pytest.raises(ValueError, match="num_heads is 0; give Medusa one head or more"):
        build_head("medusa", verifier, num_heads=0)
    with pytest.raises(ValueError, match="no tree 'oak'"):
        build_head("medusa", verifier, tree="oak")
    with pytest.raises(ValueError, match=r"'medusa' cannot take .*'size'"):
        build_head("medusa", verifier, size=3)
