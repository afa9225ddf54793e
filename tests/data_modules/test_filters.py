"""The paper's question filter and tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_modules.filters import TAGS, QuestionFilter, is_short_yes_no, question_tag

WORDS = ["is", "the", "Why", "or", "how", "many", "sign?", "é", "\n", "describe", "two"]
QUESTIONS = st.lists(st.sampled_from(WORDS), max_size=70).map(" ".join)


@pytest.mark.parametrize(
    ("question", "answers", "reason"),
    [
        ("How many dogs?", (), "too_few_words"),
        ("", (), "too_few_words"),
        ("What is in the picture?", (), None),
        ("word " * 60, (), None),
        ("word " * 61, (), "too_many_words"),
        ("Is the sky blue today?", (), "yes_no"),
        ("Is the sky blue today?", ("yes", "No.", "YES!"), "yes_no"),
        ("Is the sky blue today?", ("yes", "mostly"), None),
        ("Is the sky blue or grey?", (), None),
        ("Is the orange cat asleep today?", (), "yes_no"),  # "or" inside a word is no alternative
        ("Is there any chance of some rain today?", (), "yes_no"),
        ("Is there any chance of some more rain today?", (), None),
        ("Isolated houses stand on which hill?", (), None),
    ],
)
def test_reasons(question, answers, reason):
    assert QuestionFilter().reason(question, answers) == reason


def test_words_of_the_prompt_are_counted_on_request():
    prompt = "Look at the map.\nWhich city?\nA. Rome\nB. Bern"
    assert QuestionFilter().reason("Which city?", (), prompt) == "too_few_words"
    assert QuestionFilter(apply_to="prompt").reason("Which city?", (), prompt) is None
    assert QuestionFilter(apply_to="prompt").reason("Which city?") == "too_few_words"


def test_yes_no_rule_is_optional():
    assert QuestionFilter(drop_yes_no=False).reason("Is the sky blue today?") is None


def test_impossible_limits_are_refused():
    with pytest.raises(ValueError, match="min_words <= max_words"):
        QuestionFilter(min_words=9, max_words=8)


@given(QUESTIONS, st.integers(0, 20), st.integers(0, 70))
def test_kept_questions_have_an_allowed_length(question, low, extra):
    reason = QuestionFilter(low, low + extra, drop_yes_no=False).reason(question)
    assert (reason is None) == (low <= len(question.split()) <= low + extra)


@given(QUESTIONS, st.lists(st.sampled_from(["yes", "no", "Yes."])))
def test_yes_no_answers_never_save_a_question(question, answers):
    assert is_short_yes_no(question, answers) == is_short_yes_no(question)
    assert not is_short_yes_no(question, [*answers, "blue"])


@given(QUESTIONS, st.sampled_from(["", "llava", "docvqa", "chartqa"]))
def test_every_question_has_one_tag(question, source):
    assert question_tag(question, source) in TAGS


@pytest.mark.parametrize(
    ("question", "source", "tag"),
    [
        ("How many words are written here?", "textvqa", "count"),
        ("What colour is the plate?", "docvqa", "ocr"),
        ("Why does the sign say stop?", "llava", "ocr"),
        ("Which country is this designed for?", "llava", "reasoning"),  # no "count", no "sign"
        ("What colour is the bar?", "chartqa", "reasoning"),
        ("Describe the picture in detail.", "llava", "description"),
        ("What is happening in the picture?", "llava", "description"),
        ("What colour is the bus?", "llava", "visual_qa"),
    ],
)
def test_tags(question, source, tag):
    assert question_tag(question, source) == tag
