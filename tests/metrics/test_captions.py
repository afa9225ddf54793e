import random
import shutil

import pytest
from golden import load, measure, merged, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from tiger.metrics import ptb
from tiger.metrics.caption import CaptionAccuracy, bleu1, counts
from tiger.metrics.cider import Cider, cider

COCO = load("cider_golden.json")
ROWS = [(item["hyp_raw"], reference(*item["refs_raw"], id=str(item["image_id"]))) for item in COCO["items"]]


def tokens(item):
    return item["hyp_tok"].split(), [caption.split() for caption in item["refs_tok"]]


def test_cider_equals_the_reference_on_the_same_tokens():
    hypotheses, references = zip(*map(tokens, COCO["items"]), strict=True)
    scores = cider(hypotheses, references)
    assert scores == pytest.approx([item["cider"] for item in COCO["items"]], abs=1e-12)
    assert sum(scores) / len(scores) == pytest.approx(COCO["CIDEr"], abs=1e-12)


def test_cider_equals_the_reference_from_raw_captions():
    assert measure(Cider("python"), ROWS) == {"cider": pytest.approx(100 * COCO["CIDEr"], abs=1e-9)}


def test_cider_toy_corpus():
    toy = load("cider_toy_golden.json")
    hypotheses = [toy["res"][name][0].split() for name in toy["gts"]]
    references = [[caption.split() for caption in captions] for captions in toy["gts"].values()]
    assert cider(hypotheses, references) == pytest.approx(toy["per_image"], abs=1e-12)


def test_cider_limits():
    words = ["a", "man", "rides", "a", "red", "horse"]
    other = ["two", "dogs", "sleep", "on", "the", "grass"]
    assert cider([words], [[words]]) == [0.0], "one image has no document frequencies"
    assert cider([words, other], [[words], [other]]) == pytest.approx([10, 10])
    assert cider([[], other], [[words], [other]])[0] == 0


def test_bleu_equals_the_reference():
    totals = [sum(column) for column in zip(*(counts(*tokens(item)) for item in COCO["items"]), strict=True)]
    assert bleu1(*totals) == pytest.approx(COCO["Bleu"][0], abs=1e-9)
    expected = {"caption_accuracy": pytest.approx(100 * COCO["Bleu"][0], abs=1e-7)}
    assert measure(CaptionAccuracy(), ROWS) == expected


def test_caption_accuracy_by_hand():
    # Three of four words, for "the" counts as often as one reference has it; lengths 4 and 6.
    row = reference("the dog sits on the grass", "my old dog lies on the lawn")
    assert CaptionAccuracy().score("the the the dog", row) == pytest.approx(75 * 2.718281828459045**-0.5)
    assert CaptionAccuracy().score("", row) == 0


@pytest.mark.parametrize("probe", load("ptb_golden.json"), ids=lambda probe: probe["raw"])
def test_python_tokenizer_equals_the_treebank_probes(probe):
    assert " ".join(ptb.python_words([probe["raw"]])[0]) == probe["tok"]


def test_python_tokenizer_equals_the_treebank_on_captions():
    raw = [text for item in COCO["items"] for text in (item["hyp_raw"], *item["refs_raw"])]
    expected = [text for item in COCO["items"] for text in (item["hyp_tok"], *item["refs_tok"])]
    assert [" ".join(words) for words in ptb.python_words(raw)] == expected


def install(monkeypatch, folder, program):
    """A package pycocoevalcap with a jar, and a java that is a shell script."""
    (folder / "pycocoevalcap" / "tokenizer").mkdir(parents=True)
    (folder / "pycocoevalcap" / "__init__.py").touch()
    (folder / "pycocoevalcap" / "tokenizer" / "stanford-corenlp-3.4.1.jar").touch()
    (folder / "java").write_text(f"#!/bin/sh\n{program}\n")
    (folder / "java").chmod(0o755)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_java_tokenizer_is_used_where_installed(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "sed 's/man/man ./'")
    metric = Cider()
    assert metric.settings() == {"tokenizer": "java"}
    assert ptb.java_words(["one man\nhere", "", "two"]) == [["one", "man", "here"], [], ["two"]]
    assert measure(metric, ROWS)["cider"] > 0


def test_java_tokenizer_that_fails_is_an_error(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "echo no such class >&2; exit 1")
    with pytest.raises(ValueError, match="failed on 1 captions:\nno such class"):
        ptb.java_words(["a"])


def test_without_java_the_python_tokenizer_is_used_and_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert Cider("auto").settings() == {"tokenizer": "python"}
    with pytest.raises(ValueError, match=r"needs Java on the path and the package pycocoevalcap"):
        Cider("java")
    with pytest.raises(ValueError, match="Unknown tokenizer 'x'; choose auto, python or java"):
        Cider("x")


@pytest.mark.skipif(ptb.java_jar() is None, reason="needs Java and pycocoevalcap")
def test_real_java_tokenizer():
    probes = load("ptb_golden.json")
    assert [" ".join(w) for w in ptb.java_words([p["raw"] for p in probes])] == [p["tok"] for p in probes]


captions = st.lists(
    st.lists(st.sampled_from(["a", "dog", "cat's", "red,", "sits", "(on)", "1,000"]), max_size=8).map(
        " ".join
    ),
    min_size=2,
    max_size=5,
)


@given(captions, captions, st.integers(0, 5), st.integers())
@settings(max_examples=40)
def test_bounds_order_and_merging(hypotheses, others, cut, seed):
    rows = [(text, reference(*others, id=str(i))) for i, text in enumerate(hypotheses)]
    shuffled = random.Random(seed).sample(rows, len(rows))
    for metric, top in ((Cider("python"), 1000), (CaptionAccuracy(), 100)):
        whole = measure(metric, rows)
        assert all(0 <= value <= top + 1e-9 for value in whole.values())
        assert measure(metric, shuffled) == whole
        assert merged(metric, shuffled[:cut], shuffled[cut:]) == whole


def test_a_caption_alone_has_no_cider():
    assert Cider("python").score("a", reference("a")) is None
