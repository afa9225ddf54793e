import itertools
from collections import Counter

import pytest
import torch

from tiger.decoding.records import ROOT
from tiger.drafting.heads.trees import StaticTree, likeliest_paths, rank_accuracies, shapes

# Nodes of each depth, as published.
DEPTHS = {
    "eagle1_25": [4, 8, 8, 3, 2],
    "mc_sim_7b_63": [10, 28, 23, 2],
    "vicuna_7b_stage2": [10, 23, 23, 7],
    "vicuna_7b_stage1_ablation": [10, 21, 25, 7],
    "vicuna_7b_stage1": [10, 32, 20, 1],
    "vicuna_13b_stage2": [10, 19, 25, 9],
    "vicuna_13b_stage1": [10, 29, 23, 1],
    "vicuna_33b_stage2": [10, 24, 24, 5],
    "vicuna_33b_stage1": [10, 34, 19],
    "zephyr_stage2": [10, 27, 23, 3],
}


@pytest.mark.parametrize("name", DEPTHS)
def test_published_shapes(name):
    tree = StaticTree.of(name, 9, 10)
    assert [count for _, count in sorted(Counter(map(len, tree.paths)).items())] == DEPTHS[name]
    assert set(tree.paths) == {tuple(path) for path in shapes()[name]}
    assert set(shapes()) == set(DEPTHS)


def test_a_tree_is_cut_to_depth_and_vocabulary():
    tree = StaticTree.of("eagle1_25", 3, 2)
    assert tree.paths == (
        (0,),
        (1,),
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (0, 1, 1),
        (1, 0, 0),
    )
    assert tree.cut(1).paths == ((0,), (1,))
    assert len(tree.cut(5)) == len(tree) == 11


def test_nodes_of_a_depth_share_the_ranked_tokens():
    tree = StaticTree.of([[1], [0], [0, 0], [1, 0], [1, 1]], 4, 10)
    logits = torch.tensor([[[0.0, 1, 3, 2], [9, 1, 2, 3]], [[4, 3, 2, 1], [1, 2, 3, 4]]])
    filled = tree.fill(logits)
    assert filled.tokens.tolist() == [[2, 3, 0, 0, 3], [0, 1, 3, 3, 2]]
    assert filled.parents.tolist() == [[ROOT, ROOT, 0, 1, 1]] * 2
    assert filled.probabilities is None


def test_unusable_trees_are_refused():
    with pytest.raises(ValueError, match=r"no tree 'oak'; choose one of eagle1_25, mc_sim_7b_63, .*, or"):
        StaticTree.of("oak", 4, 10)
    with pytest.raises(ValueError, match=r"tree of 2 paths lacks \[\(1,\)\]"):
        StaticTree.of([[0], [1, 0]], 4, 10)
    with pytest.raises(ValueError, match="tree of 0 paths lacks any path"):
        StaticTree.of([], 4, 10)


def test_accuracies_of_ranks():
    logits = torch.tensor([[3.0, 2, 1], [1, 2, 3]]).expand(3, 2, -1)
    targets = torch.tensor([[0, 0], [1, 2], [0, 1]])
    valid = torch.tensor([[True, True], [True, True], [True, False]])
    found = rank_accuracies(logits, targets, valid, num_ranks=3)
    torch.testing.assert_close(found, torch.tensor([[2 / 3, 1 / 3, 0], [1 / 2, 0, 1 / 2]]))
    assert rank_accuracies(logits, targets, torch.zeros_like(valid), 3).eq(0).all()


def test_the_likeliest_paths_are_the_best_tree():
    accuracies = torch.rand(3, 3, generator=torch.Generator().manual_seed(0)).mul(0.5).tolist()
    every = [path for n in (1, 2, 3) for path in itertools.product(range(3), repeat=n)]

    def gain(path):
        return torch.tensor([accuracies[d][r] for d, r in enumerate(path)], dtype=torch.double).prod()

    found = likeliest_paths(accuracies, 12)
    assert [tuple(path) for path in found] == sorted(every, key=gain, reverse=True)[:12]
    assert len(StaticTree.of(found, 3, 3)) == 12
    assert len(likeliest_paths(accuracies, 99)) == len(every)
