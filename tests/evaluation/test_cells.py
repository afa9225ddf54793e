"""Entries of `metrics.json` that need no models."""

from types import SimpleNamespace

import pytest

from data_modules.evaluation import load_set
from tiger.decoding.records import Generation, Round
from tiger.evaluation.cells import acceptance, scores, speed
from tiger.evaluation.timing import Timing
from tiger.metrics.caption import CaptionAccuracy
from tiger.metrics.cider import Cider


def test_settings_of_all_metrics_of_a_set_are_kept():
    tasks = load_set("synthetic", 1)
    metrics = (Cider("python"), CaptionAccuracy())
    captions = SimpleNamespace(style="score", references=tasks.references, metrics=lambda: metrics)
    entry = scores([Generation("a", [1], "A star.")], captions, [None], seed=0)
    assert entry["score_settings"] == {
        "cider": {"tokenizer": "python"},
        "caption_accuracy": {"definition": "BLEU-1", "tokenizer": "python"},
    }


def test_rounds_may_draft_nothing():
    entry = acceptance([Generation("a", [1, 7], rounds=[Round([], 0, 7, 1)])], seed=0)
    assert (entry["acclen"], entry["rounds"]) == (0, 1)


@pytest.mark.parametrize("groups", [3, 4])
def test_a_speedup_of_few_groups_has_no_interval(groups):
    slow, fast = (Timing([s] * groups, [10] * groups, [0.1] * groups) for s in (2.0, 1.0))
    entry = speed({"autoregressive": slow, "tiger": fast}, "tiger", "vanilla")
    assert entry["speedup"] == 2.0
    assert entry["speedup_low"] == entry["speedup_high"] == (2.0 if groups == 4 else None)
