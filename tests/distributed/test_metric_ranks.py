"""Answers scored on several ranks give the figures of one process, also where a rank has none."""

import json

import pytest
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from tiger.metrics.cider import Cider
from tiger.metrics.exact_match import ExactMatch
from tiger.metrics.task import Reference

pytestmark = pytest.mark.dist

ROWS = [("a red dog runs", "a dog runs"), ("two cats", "two cats sit"), ("a man", "a man rides a bike")]
METRICS = {"exact": ExactMatch, "cider": lambda: Cider("python")}
ALONE = [0, 1, 2]
SHARES = [([0, 2], [1]), ([2, 1, 0], []), ([0, 1], [2, 0])]  # of two ranks; the last repeats a sample


def figures(samples):
    """What each metric computes when this rank has these samples."""
    found = {}
    for name, make in METRICS.items():
        metric = make()
        references = [Reference(str(i), (ROWS[i][1],)) for i in samples]
        metric.update([ROWS[i][0] for i in samples], references)
        found[name] = metric.compute()
    return found


def score(rank, folder):
    """The program of a rank."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps([figures(share[rank]) for share in SHARES]))
    dist.destroy_process_group()


def test_ranks_equal_one_process(tmp_path):
    alone = figures(ALONE)
    assert alone["cider"]["cider"] > 0
    spawn(score, (tmp_path,), nprocs=2)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [alone] * len(SHARES)
