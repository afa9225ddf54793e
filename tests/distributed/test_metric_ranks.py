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


def score(rank, shards, folder):
    """The program of a rank: scores its rows, then those of all ranks together."""
    if len(shards) > 1:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=len(shards))
    found = {}
    for name, make in METRICS.items():
        metric = make()
        answers, captions = zip(*[ROWS[i] for i in shards[rank]], strict=True) if shards[rank] else ((), ())
        names = zip(shards[rank], captions, strict=True)
        metric.update(answers, [Reference(str(i), (caption,)) for i, caption in names])
        found[name] = metric.compute()
    (folder / f"{len(shards)}-{rank}.json").write_text(json.dumps(found))
    if len(shards) > 1:
        dist.destroy_process_group()


@pytest.mark.parametrize("shards", [[[0, 2], [1]], [[2, 1, 0], []], [[0, 1], [2, 0]]], ids=str)
def test_ranks_equal_one_process(tmp_path, shards):
    score(0, [[0, 1, 2]], tmp_path)
    spawn(score, (shards, tmp_path), nprocs=2)
    alone, *ranks = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1"))
    assert alone["cider"]["cider"] > 0
    assert ranks == [alone, alone]
