import pytest
from golden import VECTORS, measure, reference

from tiger.metrics.choice_rules import RULES, lmms, muirbench, scienceqa, videomme, vlmeval
from tiger.metrics.multiple_choice import CircularChoice, MultipleChoice

OPTIONS = {"A": "cat", "B": "dog", "C": "bird", "D": "fish"}


def question(right="A", **fields):
    return reference(right, choices=fields.pop("choices", OPTIONS), **fields)


@pytest.mark.parametrize("case", VECTORS["mcq"], ids=lambda case: repr(case["pred"]))
def test_both_rules_equal_the_reference(case):
    asked = question(choices=case["choices"])
    assert (lmms(case["pred"], asked) or "") == case["lmms_extract_ABCD"]
    assert (vlmeval(case["pred"], asked) or False) == case["vlmeval_can_infer"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B is what I would say about this one", None),  # not among the last four words
        ("I would say that the correct answer is **B**, as A shows a C", "B"),
        ("Sorry, I can't help with images of people yet.", "Z"),
        ("Z", "Z"),
        ("the bird " + "sings " * 20, None),  # too long to match a text
        ("It is the Bird", "C"),
        ("a bird or a fish", None),
    ],
)
def test_vlmeval_rule(text, letter):
    assert vlmeval(text, question()) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(A) or (B) or so", "B"),  # the later of one form
        ("I choose D over (A) here", "A"),  # after the phrase the later place wins
        ("USA. is it", "A"),
        ("   ", None),
        ("...", None),
        ("Because", "B"),  # any occurrence, if nothing else
        ("A1", "A"),
        ("xB", "B"),
    ],
)
def test_lmms_rule(text, letter):
    assert lmms(text, question()) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The best answer is C", "C"),
        ("Answer: D", "D"),
        ("Best answer: C", "B"),  # the benchmark's list has a gap there
        ("The best option is A", "A"),
        ("none of these", None),
        ("b", None),
    ],
)
def test_videomme_rule(text, letter):
    assert videomme(text, question()) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [(" b ", "B"), ("B. dog", "B"), ("b. dog", None), ("The answer is B", None), ("", None), ("BD", None)],
)
def test_scienceqa_rule(text, letter):
    assert scienceqa(text, question()) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(A) is wrong, so (B).", "B"),
        ("A is wrong, so B", "B"),
        ("'C.'", "C"),
        ("It must be a bird there I think, no fish", "D"),
    ],
)
def test_muirbench_rule(text, letter):
    assert muirbench(text, question()) == letter


def test_muirbench_draws_by_the_sample():
    drawn = [muirbench("no idea", question(id=str(i))) for i in range(200)]
    assert drawn == [muirbench("no idea", question(id=str(i))) for i in range(200)]
    assert all(30 < drawn.count(letter) < 70 for letter in OPTIONS)


def test_accuracy_by_group():
    rows = [
        ("A", question("A", id="1", group="short")),
        ("A", question("B", id="2", group="short")),
        ("(C)", question("C", id="3", group="long")),
    ]
    expected = {"accuracy": 200 / 3, "accuracy/long": 100, "accuracy/short": 50}
    assert measure(MultipleChoice("videomme"), rows) == pytest.approx(expected)


def test_circular_accuracy_needs_every_copy():
    rows = [
        ("A", question("A", id="5", group="5")),
        ("B", question("B", id="1000005", group="5")),
        ("A", question("A", id="6", group="6")),
        ("A", question("B", id="1000006", group="6")),
        ("D", question("D", id="7")),
    ]
    assert measure(CircularChoice("vlmeval"), rows) == pytest.approx(
        {"circular_accuracy": 200 / 3, "vanilla_accuracy": 100}
    )


def test_errors():
    with pytest.raises(ValueError, match="Unknown rule 'x'; choose one of vlmeval, lmms, videomme"):
        MultipleChoice("x")
    with pytest.raises(ValueError, match="the right answer 'E' is none of the choices A, B, C, D"):
        MultipleChoice().score("A", question("E"))
    with pytest.raises(ValueError, match=r"none of the choices \(none given\)"):
        MultipleChoice("muirbench").score("A", reference("A"))
    with pytest.raises(ValueError, match="1 questions have copies but no original, '9' first"):
        measure(CircularChoice(), [("A", question("A", id="1000009", group="9"))])


def test_settings_name_the_rule():
    assert [MultipleChoice(rule).settings()["rule"] for rule in RULES] == list(RULES)
