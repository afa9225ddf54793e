"""Entries of `metrics.json` that need no models."""

from types import SimpleNamespace

from data_modules.evaluation import load_set
from tiger.decoding.records import Generation, Round
from tiger.evaluation.cells import acceptance, scores
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
