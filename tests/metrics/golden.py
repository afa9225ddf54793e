"""Golden vectors of the reference implementations and helpers for metric tests."""

import json
from copy import deepcopy
from pathlib import Path

from tiger.metrics.task import Reference

FOLDER = Path(__file__).parents[1] / "data" / "golden"


def load(name):
    return json.loads((FOLDER / name).read_text())


VECTORS = load("metrics_golden.json")


def reference(*answers, id="0", **fields):
    return Reference(id, answers, **fields)


def measure(metric, rows):
    """The figures of (answer, reference) rows."""
    metric.reset()
    metric.update([row[0] for row in rows], [row[1] for row in rows])
    return metric.compute()


def merged(metric, *shards):
    """The figures of rows that were added to several metrics and merged."""
    filled = []
    for rows in shards:
        filled.append(deepcopy(metric))
        filled[-1].reset()
        filled[-1].update([row[0] for row in rows], [row[1] for row in rows])
    for shard in filled[1:]:
        filled[0].merge_state(shard)
    return filled[0].compute()
