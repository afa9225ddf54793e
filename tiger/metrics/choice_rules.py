"""Which letter an answer to a multiple-choice question chooses, by the rules of the field.

Each rule takes an answer and its reference and returns a letter, "Z" for a refusal, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import itemgetter
from random import Random

from tiger.metrics.task import Reference

_SPACED = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
_PHRASES = (
    *("the answer is", "answer is", "the correct answer is", "correct answer is", "the best answer is"),
    *("best answer is", "the correct option is", "correct option is", "the best option is", "best option is"),
    *("the choice is", "choice is", "the correct choice is", "correct choice is", "i choose", "i select"),
    *(
        "i pick",
        "my answer is",
        "my choice is",
        "옵션",
        "정답은",
        "답은",
        "답:",
        "答案是",
        "答案为",
        "选",
        "答えは",
    ),
)
# What the published list removes; its last entries lack commas, fuse and so never match.
_VIDEOMME_PREFIXES = (
    *("The best answer is", "The correct answer is", "The answer is", "The answer", "Answer:", "Option:"),
)


def vlmeval(answer: str, reference: Reference) -> str | None:
    """VLMEvalKit's `can_infer`: the only letter, among the last four words; else the only option text."""
    if any(refusal in answer for refusal in _REFUSALS):
        return "Z"
    words = answer.translate(_SPACED).split()
    letters = [letter for letter in reference.choices if letter in words]
    if len(letters) == 1 and words.index(letters[0]) > len(words) - 5:
        return letters[0]
    if not letters and "Z" in words:
        return "Z"
    if named := re.search(r"answer is \**([ABCD])", answer):
        return named[1]
    texts = {letter: text.lower() for letter, text in reference.choices.items()}
    if len(answer) > 2 * sum(map(len, texts.values())):
        return None
    held = [letter for letter, text in texts.items() if text in answer.lower()]
    return held[0] if len(held) == 1 else None


def lmms(answer: str, reference: Reference) -> str | None:
    """lmms-eval's extraction of April 2026: a letter at the start, at the end, after a phrase, by its form.

    The best form wins, and of one form the later place. Case matters.
    """
    text = _stripped(answer.strip(), ",.!?;:'\"")
    core, text = text.strip(), f" {text} "
    letters, found = list(reference.choices), []
    for rank, form in ((6, "({})"), (5, "{}."), (4, "{}:"), (3, "{})"), (2, "{} ")):
        found += [(rank, text.rfind(form.format(letter)), letter) for letter in letters]
    for phrase in _PHRASES:
        if (start := text.lower().find(phrase)) >= 0:
            found += [(7, text.find(letter, start + len(phrase)), letter) for letter in letters]
    found += [(10, 0, letter) for letter in letters if re.match(rf"{letter}(?![^\W\d_])", core)]
    found += [(9, len(text), letter) for letter in letters if re.search(rf"(?<![^\W\d_]){letter}$", core)]
    places = [place for place in found if place[1] >= 0]
    places = places or [(0, text.rfind(letter), letter) for letter in letters if letter in text]
    return max(places)[2] if places else None


def videomme(answer: str, reference: Reference) -> str | None:
    """Video-MME's own rule: the first of the letters A to D once phrases like "The answer is" are gone."""
    for prefix in _VIDEOMME_PREFIXES:
        answer = answer.replace(prefix, "")
    found = re.search("[ABCD]", answer)
    return found[0] if found else None


def scienceqa(answer: str, reference: Reference) -> str | None:
    """ScienceQA's rule: the answer is a letter, in any case, or begins with a capital and a dot."""
    answer = answer.strip()
    if len(answer) == 1:
        return answer.upper()
    return answer[0] if re.match(r"[A-Z]\.", answer) else None


def muirbench(answer: str, reference: Reference) -> str | None:
    """MuirBench's own rule (from MMMU): (X), else a lone X, else an option's text; the last one counts.

    An answer that names none is given a letter at random, as the benchmark does; here the sample's id seeds
    the draw, so it is the same in any order and on any rank.
    """
    text = " " + _stripped(answer, ",.!?;:'") + " "
    for form in ("({})", " {} "):
        if places := _last(text, {letter: form.format(letter) for letter in reference.choices}):
            return max(places, key=itemgetter(0))[1]
    options = {letter: option.lower() for letter, option in reference.choices.items()}
    if len(text.split()) > 5 and (places := _last(text.lower(), options)):
        return max(places, key=itemgetter(0))[1]
    return Random(f"42/{reference.id}").choice(sorted(reference.choices))


def _stripped(text: str, signs: Iterable[str]) -> str:
    """Strips one sign after the other, so that later signs may uncover earlier ones, which stay."""
    for sign in signs:
        text = text.strip(sign)
    return text


def _last(text: str, forms: dict[str, str]) -> list[tuple[int, str]]:
    """Last place of each form that occurs, with its letter."""
    return [(text.rfind(form), letter) for letter, form in forms.items() if form in text]


RULES: dict[str, Callable[[str, Reference], str | None]] = {
    rule.__name__: rule for rule in (vlmeval, lmms, videomme, scienceqa, muirbench)
}
