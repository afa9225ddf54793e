"""CIDEr-D: do captions say what people say of this image and of no other?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tiger.metrics.ptb import chosen_tokenizer, words_of
from tiger.metrics.task import Reference, TaskMetric

SIGMA = 6.0  # of the penalty on the difference of lengths, tokens
Vector = list[dict[tuple[str, ...], float]]


def cider(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    r"""CIDEr-D of each image, 0 to 10, as pycocoevalcap computes it.

    With h and r the vectors of n-grams, weighted by count x log(images / images whose references have it),

        10 * mean over n = 1..4 and references of  \sum min(h, r) r / (|h| |r|) * exp(-(l_h - l_r)^2 / 72)

    Document frequencies come from the references of these images, so a single image scores 0. The lengths l
    are the numbers of bigrams, which is what the published code counts.

    Args:
        hypotheses: Words of one caption per image.
        references: Words of the reference captions of each image.
    """
    counts = [[_ngrams(words) for words in captions] for captions in references]
    frequency = Counter(gram for captions in counts for gram in set().union(*captions))
    scores = []
    for hypothesis, captions in zip(hypotheses, counts, strict=True):
        weighted = _weighted(_ngrams(hypothesis), frequency, len(references))
        length = max(len(hypothesis) - 1, 0)
        total = 0.0
        for caption in captions:
            other = sum(number for gram, number in caption.items() if len(gram) == 2)
            penalty = math.exp(-((length - other) ** 2) / (2 * SIGMA**2))
            total += penalty * _similarity(weighted, _weighted(caption, frequency, len(references)))
        scores.append(10 * total / len(captions))
    return scores


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Counts of all runs of one to four words."""
    starts = ((n, start) for n in range(1, 5) for start in range(len(words) - n + 1))
    return Counter(tuple(words[start : start + n]) for n, start in starts)


def _weighted(counts: Counter[tuple[str, ...]], frequency: Counter[tuple[str, ...]], images: int) -> Vector:
    """One vector per n of counts times inverse document frequencies."""
    vector: Vector = [{}, {}, {}, {}]
    for gram, number in counts.items():
        vector[len(gram) - 1][gram] = number * (math.log(images) - math.log(max(1, frequency[gram])))
    return vector


def _similarity(left: Vector, right: Vector) -> float:
    """Mean over n of the clipped cosine."""
    total = 0.0
    for hypothesis, reference in zip(left, right, strict=True):
        common = hypothesis.keys() & reference.keys()
        product = sum(min(hypothesis[gram], reference[gram]) * reference[gram] for gram in common)
        norms = math.hypot(*hypothesis.values()) * math.hypot(*reference.values())
        total += product / norms if norms else 0.0
    return total / 4


class Cider(TaskMetric):
    """CIDEr-D (Vedantam et al. 2015) over a whole set, as printed by the field: 1.32 is 132.

    It may exceed 100, at most 1000. A caption alone has no score, for the other images give the weights.

    Args:
        tokenizer: "python"; "java", the Stanford tokenizer of pycocoevalcap; or "auto", which is "java" where
            that is installed. `settings` names the one that was used.
        kwargs: Options of `torchmetrics.Metric`.

    Raises:
        ValueError: If the tokenizer is unknown or not installed.
    """

    headline = "cider"

    def __init__(self, tokenizer: str = "auto", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tokenizer = chosen_tokenizer(tokenizer)

    def settings(self) -> dict[str, str]:
        """The tokenizer."""
        return {"tokenizer": self.tokenizer}

    def score(self, prediction: str, reference: Reference) -> None:
        """None."""
        return None

    def compute(self) -> dict[str, float]:
        """Mean CIDEr-D over all images, times 100."""
        rows = self.gathered()
        captions = [text for answer, reference in rows for text in (answer, *reference.answers)]
        words = iter(words_of(captions, self.tokenizer))
        split = [[next(words) for _ in range(1 + len(reference.answers))] for _, reference in rows]
        scores = cider([own for own, *_ in split], [others for _, *others in split])
        return {"cider": 100 * sum(scores) / len(scores)}
