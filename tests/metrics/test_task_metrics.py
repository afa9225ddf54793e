"""The field's own numbers, and what every task metric promises."""

import random

import pytest
import torch
from golden import VECTORS, load, measure, merged, reference
from hypothesis import given
from hypothesis import strategies as st

from tiger.metrics import vqa
from tiger.metrics.anls import Anls, anls
from tiger.metrics.counting import CountingAccuracy, count
from tiger.metrics.exact_match import ExactMatch
from tiger.metrics.multiple_choice import CircularChoice, MultipleChoice
from tiger.metrics.nlvr2 import Nlvr2, verdict
from tiger.metrics.pope import Pope, says_yes
from tiger.metrics.relaxed_accuracy import RelaxedAccuracy, is_relaxed_match
from tiger.metrics.task import Reference


@pytest.mark.parametrize("case", VECTORS["vqa_normalize"], ids=lambda case: repr(case["in"]))
def test_vqa_normalisers_equal_the_reference(case):
    assert vqa.evalai_normal(case["in"]) == case["lmms"]
    # The vector stops behind punctuation; digits and articles come after it in both.
    punctuated = vqa._without_punctuation(case["in"].strip(), r"(?<!\d)\.(?!\d)")
    assert punctuated == case["vlmeval_punct_only"].strip("\n") or case["in"] != case["in"].strip()
    assert vqa.vlmeval_normal(case["in"]) == vqa._words(case["vlmeval_punct_only"])


def test_vqa_tables_are_those_of_the_evaluation():
    tables = load("vqa_tables.json")
    assert tables["contractions"] == vqa.CONTRACTIONS
    assert tables["number_map"] == vqa.NUMBERS
    assert (tables["punctuations"], tables["articles"]) == (list(vqa.PUNCTUATION), list(vqa.ARTICLES))


@pytest.mark.parametrize("case", VECTORS["vqa_soft"])
def test_vqa_accuracy_equals_the_reference(case):
    metric = vqa.VqaAccuracy()
    points = metric.score(case["pred"], reference(*case["answers"]))
    assert points == pytest.approx(100 * case["score"], abs=1e-12)
    assert measure(metric, [(case["pred"], reference(*case["answers"]))]) == {"vqa_accuracy": points}


def test_vqa_normaliser_changes_the_score_and_is_reported():
    answers = ["it's", "it's", "it's", "it 's"]
    assert [vqa.VqaAccuracy(name).score("it 's", reference(*answers)) for name in vqa.NORMALISERS] == [
        100,
        25,
    ]
    assert vqa.VqaAccuracy("vlmeval").settings() == {"normaliser": "vlmeval"}


@pytest.mark.parametrize("case", VECTORS["anls"])
def test_anls_equals_the_reference(case):
    assert anls(case["pred"], case["answers"]) == pytest.approx(case["score"], abs=1e-15)


def test_anls_divides_by_the_length_with_spaces():
    assert Anls().score("x  y z", reference("x y")) == pytest.approx(100 * (1 - 2 / 6))


@pytest.mark.parametrize("case", VECTORS["relaxed"])
def test_relaxed_accuracy_equals_the_reference(case):
    assert is_relaxed_match(case["pred"], case["target"]) is case["correct"]


def test_groups_are_reported_apart():
    rows = [
        ("10.4", reference("10", id="a", group="human")),
        ("yes", reference("no", id="b", group="human")),
        ("50%", reference("0.5", id="c", group="augmented")),
    ]
    assert measure(RelaxedAccuracy(), rows) == {
        "relaxed_accuracy": pytest.approx(200 / 3),
        "relaxed_accuracy/augmented": 100,
        "relaxed_accuracy/human": 50,
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", "2"),
        ("Two.", "2"),
        ("There are twelve dogs", "12"),
        ("none", "0"),
        ("007", "7"),
        ("someone", None),
        ("", None),
        ("twenty", "20"),
    ],
)
def test_counts_are_read_from_digits_and_words(text, number):
    assert count(text) == number


def test_counting_accuracy_by_kind_of_question():
    rows = [
        ("three", reference("3", id="a", group="simple")),
        ("4", reference("three", id="b", group="complex")),
        ("no idea", reference("0", id="c", group="complex")),
    ]
    expected = {"accuracy": 100 / 3, "accuracy/complex": 0, "accuracy/simple": 100}
    assert measure(CountingAccuracy(), rows) == pytest.approx(expected)


@pytest.mark.parametrize(("text", "points"), [("On the left.", 100), (" on THE left", 100), ("the left", 0)])
def test_exact_match_ignores_case_and_punctuation(text, points):
    assert ExactMatch().score(text, reference("on the left")) == points


@pytest.mark.parametrize(
    ("answer", "yes"),
    [
        ("Yes", True),
        ("no", False),
        ("No, there is none.", False),
        ("There is not", False),
        ("Yes. No.", True),
    ],
)
def test_pope_reads_the_first_sentence(answer, yes):
    assert says_yes(answer) is yes


def test_pope_figures_by_hand():
    answers = [("yes", "yes"), ("yes", "no"), ("no", "no"), ("no", "yes"), ("yes", "yes")]
    rows = [
        (given, reference(wanted, id=str(i), group="random")) for i, (given, wanted) in enumerate(answers)
    ]
    result = measure(Pope(), rows)
    assert list(result) == ["accuracy", "precision", "recall", "f1", "yes_ratio"] + [
        f"{name}/random" for name in ("accuracy", "precision", "recall", "f1", "yes_ratio")
    ]
    assert [result[name] for name in ("accuracy", "yes_ratio")] == [60, 60]
    assert [result[name] for name in ("precision", "recall", "f1")] == [pytest.approx(200 / 3)] * 3


def test_pope_without_a_yes():
    result = measure(Pope(), [("no", reference("no"))])
    assert result == {"accuracy": 100, "precision": 0, "recall": 0, "f1": 0, "yes_ratio": 0}


@pytest.mark.parametrize(
    ("answer", "judged"),
    [
        *[("True", True), ("false.", False), ("Yes, it is", True), ("A", True), ("(B) False", False)],
        *[("B.", False), ("A bird sits there", True), ("true or false", None), ("maybe", None), ("", None)],
    ],
)
def test_nlvr2_verdicts(answer, judged):
    assert verdict(answer) is judged


def test_nlvr2_consistency_counts_whole_statements():
    rows = [
        ("true", reference("True", id="1", group="s1")),
        ("false", reference("True", id="2", group="s1")),
        ("false", reference("False", id="3", group="s2")),
        ("false", reference("False", id="4", group="s2")),
    ]
    assert measure(Nlvr2(), rows) == {"accuracy": 75, "consistency": 50}


OPTIONS = {"A": "cat", "B": "dog"}
METRICS = [
    *(vqa.VqaAccuracy(), vqa.VqaAccuracy("vlmeval"), Anls(), RelaxedAccuracy(), CountingAccuracy()),
    *(ExactMatch(), Pope(), Nlvr2(), MultipleChoice("lmms"), MultipleChoice("muirbench"), CircularChoice()),
]
ANSWERS = {
    "CountingAccuracy": ("2", "two"),
    "Pope": ("yes", "no"),
    "Nlvr2": ("True", "False"),
    "MultipleChoice": ("A", "B"),
    "CircularChoice": ("A", "B"),
}


def make_rows(metric, texts):
    """Rows of any texts with references that the metric takes; groups of two."""
    answers = ANSWERS.get(type(metric).__name__, ("2 dogs", "no"))
    return [
        (
            text,
            Reference(
                f"{i:03}",
                (answers[i % 2],) * 4,
                OPTIONS,
                f"{i - i % 2:03}",
                "Is it?",
            ),
        )
        for i, text in enumerate(texts)
    ]


predictions = st.lists(
    st.sampled_from(["A", "B", "yes", "No", "true", "False", "2", "two dogs", "", "é\n\u2028x"]) | st.text(),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)
@given(predictions, st.data())
def test_bounds_order_and_merging(metric, texts, data):
    rows = make_rows(metric, texts)
    whole = measure(metric, rows)
    assert all(0 <= value <= 100 for value in whole.values())
    assert next(iter(whole)) == metric.headline
    assert all(0 <= metric.score(*row) <= 100 for row in rows)
    shuffled = rows[:]
    random.Random(data.draw(st.integers())).shuffle(shuffled)
    cut = data.draw(st.integers(0, len(rows)))
    assert list(measure(metric, shuffled).items()) == list(whole.items())
    assert merged(metric, shuffled[:cut], shuffled[cut:]) == whole
    assert merged(metric, rows, rows[:1]) == whole, "a sample that padding repeats counts once"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: type(metric).__name__)
def test_right_answers_get_all_points(metric):
    rows = [(row.answers[0], row) for _, row in make_rows(metric, ["", "", ""])]
    assert measure(metric, rows)[metric.headline] == 100


def test_errors_say_what_to_do():
    metric = ExactMatch()
    with pytest.raises(ValueError, match="No answer was added"):
        measure(metric, [])
    with pytest.raises(ValueError, match="1 answers for 2 references"):
        metric.update(["a"], [reference("a"), reference("b")])
    with pytest.raises(ValueError, match="'7' has no reference answers"):
        metric.update(["a"], [Reference("7", ())])
    with pytest.raises(ValueError, match="Two different samples have the id '0'"):
        measure(metric, [("a", reference("a")), ("b", reference("a"))])
    with pytest.raises(ValueError, match=r"Unknown normaliser 'x'; choose one of evalai, vlmeval\."):
        vqa.VqaAccuracy("x")
    with pytest.raises(ValueError, match="has one reference answer"):
        vqa.VqaAccuracy().score("a", reference("a"))
    with pytest.raises(ValueError, match="as counts; give numbers"):
        CountingAccuracy().score("2", reference("many"))
    with pytest.raises(ValueError, match="POPE knows yes and no"):
        Pope().score("yes", reference("maybe"))
    with pytest.raises(ValueError, match="give True or False"):
        Nlvr2().score("True", reference("maybe"))


def test_state_is_gathered_bytes():
    metric = ExactMatch()
    metric.update(["é"], [reference("e")])
    assert metric.samples[0].dtype == torch.uint8
    assert metric._reductions["samples"].__name__ == "dim_zero_cat"
