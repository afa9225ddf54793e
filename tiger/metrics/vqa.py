"""VQA soft accuracy: how many of ten people gave the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tiger.metrics.counting import NUMBER_WORDS
from tiger.metrics.task import Reference, TaskMetric

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = ("a", "an", "the")
NUMBERS = {"none": "0"} | {word: str(value) for value, word in enumerate(NUMBER_WORDS[:11])}
# Word table of the VQA evaluation (GT-Vision-Lab/VQA, BSD-2-Clause): spelling without and with apostrophes.
_CONTRACTIONS = """
aint:ain't arent:aren't cant:can't couldve:could've couldnt:couldn't couldn'tve:couldn't've
couldnt've:couldn't've didnt:didn't doesnt:doesn't dont:don't hadnt:hadn't hadnt've:hadn't've
hadn'tve:hadn't've hasnt:hasn't havent:haven't hed:he'd hed've:he'd've he'dve:he'd've hes:he's howd:how'd
howll:how'll hows:how's Id've:I'd've I'dve:I'd've Im:I'm Ive:I've isnt:isn't itd:it'd itd've:it'd've
it'dve:it'd've itll:it'll let's:let's maam:ma'am mightnt:mightn't mightnt've:mightn't've
mightn'tve:mightn't've mightve:might've mustnt:mustn't mustve:must've neednt:needn't notve:not've
oclock:o'clock oughtnt:oughtn't ow's'at:'ow's'at 'ows'at:'ow's'at 'ow'sat:'ow's'at shant:shan't
shed've:she'd've she'dve:she'd've she's:she's shouldve:should've shouldnt:shouldn't shouldnt've:shouldn't've
shouldn'tve:shouldn't've somebody'd:somebodyd somebodyd've:somebody'd've somebody'dve:somebody'd've
somebodyll:somebody'll somebodys:somebody's someoned:someone'd someoned've:someone'd've
someone'dve:someone'd've someonell:someone'll someones:someone's somethingd:something'd
somethingd've:something'd've something'dve:something'd've somethingll:something'll thats:that's
thered:there'd thered've:there'd've there'dve:there'd've therere:there're theres:there's theyd:they'd
theyd've:they'd've they'dve:they'd've theyll:they'll theyre:they're theyve:they've twas:'twas wasnt:wasn't
wed've:we'd've we'dve:we'd've weve:we've werent:weren't whatll:what'll whatre:what're whats:what's
whatve:what've whens:when's whered:where'd wheres:where's whereve:where've whod:who'd whod've:who'd've
who'dve:who'd've wholl:who'll whos:who's whove:who've whyll:why'll whyre:why're whys:why's wont:won't
wouldve:would've wouldnt:wouldn't wouldnt've:wouldn't've wouldn'tve:wouldn't've yall:y'all yall'll:y'all'll
y'allll:y'all'll yall'd've:y'all'd've y'alld've:y'all'd've y'all'dve:y'all'd've youd:you'd youd've:you'd've
you'dve:you'd've youll:you'll youre:you're youve:you've
"""
CONTRACTIONS = dict(pair.split(":") for pair in _CONTRACTIONS.split())


def evalai_normal(text: str) -> str:
    """An answer as the TextVQA challenge server compares it (m4c, lmms-eval)."""
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    return _words(_without_punctuation(_one_line(text), r"\.(?!\d)"))


def vlmeval_normal(text: str) -> str:
    """An answer as VLMEvalKit compares it: no first step, and a dot after a digit stays."""
    return _words(_without_punctuation(_one_line(text), r"(?<!\d)\.(?!\d)"))


NORMALISERS: dict[str, Callable[[str], str]] = {"evalai": evalai_normal, "vlmeval": vlmeval_normal}


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _without_punctuation(text: str, dot: str) -> str:
    """Deletes signs that stand at a space, puts a space for others; `dot` says which dots go."""
    has_thousands = re.search(r"\d,\d", text) is not None
    result = text
    for sign in PUNCTUATION:
        at_space = f"{sign} " in text or f" {sign}" in text
        result = result.replace(sign, "" if at_space or has_thousands else " ")
    return re.sub(dot, "", result, count=32)  # the published code passes a flag (32) as the count


def _words(text: str) -> str:
    """Number words as digits, no articles, apostrophes put back, single spaces."""
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def soft_accuracy(prediction: str, answers: Sequence[str], normal: Callable[[str], str]) -> float:
    """Mean over all people i of min(1, others than i who gave the answer / 3), in [0, 1]."""
    given, accepted = normal(prediction), [normal(answer) for answer in answers]
    matches = accepted.count(given)
    return sum(min(1.0, (matches - (answer == given)) / 3) for answer in accepted) / len(accepted)


class VqaAccuracy(TaskMetric):
    """VQA soft accuracy (Antol et al. 2015; TextVQA, VQAv2, OKVQA), mean over questions.

    With ten answers of which k agree the points are 0, 30, 60, 90 for k = 0 to 3 and 100 from 4 on; the
    shortcut min(1, k/3) is another measure. A single reference answer cannot be scored.

    Args:
        normaliser: "evalai" (TextVQA challenge, lmms-eval) or "vlmeval" (VLMEvalKit).
        kwargs: Options of `torchmetrics.Metric`.

    Raises:
        ValueError: If the normaliser is unknown.
    """

    headline = "vqa_accuracy"

    def __init__(self, normaliser: str = "evalai", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if normaliser not in NORMALISERS:
            raise ValueError(f"Unknown normaliser {normaliser!r}; choose one of {', '.join(NORMALISERS)}.")
        self.normaliser = normaliser

    def settings(self) -> dict[str, str]:
        """The normaliser."""
        return {"normaliser": self.normaliser}

    def score(self, prediction: str, reference: Reference) -> float:
        """Points of one answer.

        Raises:
            ValueError: If there are fewer than two reference answers, so that no other person can agree.
        """
        if len(reference.answers) < 2:
            raise ValueError(
                f"Sample {reference.id!r} has one reference answer; VQA accuracy compares with several "
                "people (ten as a rule). Use exact match for single answers."
            )
        return 100 * soft_accuracy(prediction, reference.answers, NORMALISERS[self.normaliser])
