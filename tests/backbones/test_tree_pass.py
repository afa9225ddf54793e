"""One pass over a tree gives what a pass over each of its paths gives, in every family."""

import pytest
import torch
from standins import FAMILIES, save_standin

from tests.backbones.test_families import PROMPTS
from tiger.backbones.loading import load_backbone
from tiger.decoding.verifier import Verifier
from tiger.drafting.base import TokenTree

PARENTS = [[-1, -1, 0, 0, 1, 2, 5, 1], [-1, 0, 1, 0], [-1]]
PATHS = [[1, 7], [0, 1, 2], []]


@pytest.fixture(scope="module", params=FAMILIES)
def verifier(request, tmp_path_factory):
    return Verifier(load_backbone(save_standin(request.param, tmp_path_factory.mktemp(request.param))))


def ancestors(parents, node):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


@torch.no_grad()
def test_a_tree_pass_equals_a_pass_over_every_path(verifier):
    names = ("one image", "text", "images of many sizes")
    inputs = [verifier.backbone.prepare(PROMPTS[name]) for name in names]
    ids = torch.randint(20, 200, (3, 9), generator=torch.Generator().manual_seed(0))
    roots = ids[:, :1]
    tokens = [row[1 : len(parents) + 1] for row, parents in zip(ids.tolist(), PARENTS, strict=True)]
    tree = TokenTree.of_rows(tokens, PARENTS, ids.device)
    state, _ = verifier.prefill(inputs, reserve=12)
    found = verifier.run(state, torch.cat([roots, tree.tokens], 1), tree)

    def alone(row, path):
        """Logits of a path read behind its prompt, token by token."""
        single, _ = verifier.prefill([inputs[row]], reserve=12)
        for token in (roots[row].item(), *path):
            logits = verifier.run(single, torch.tensor([[token]]))[0, -1]
            verifier.commit(single, [1])
        return logits

    for row, parents in enumerate(PARENTS):
        for node in range(len(parents)):
            path = [tokens[row][above] for above in ancestors(parents, node)]
            assert (found[row, node + 1] - alone(row, path)).abs().max() < 1e-5

    slabs = [layer.keys.data_ptr() for layer in state.cache.layers]
    verifier.keep(state, PATHS)
    behind = verifier.run(state, torch.tensor([[50], [60], [70]]))[:, 0]
    assert [layer.keys.data_ptr() for layer in state.cache.layers] == slabs
    for row, last in enumerate((50, 60, 70)):
        path = [tokens[row][node] for node in PATHS[row]]
        assert (behind[row] - alone(row, [*path, last])).abs().max() < 1e-5
