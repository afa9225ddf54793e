"""Which ids a head with a draft vocabulary can draft: the most frequent ones of the training answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

MOST_EXAMPLES = 4096  # examples whose answers are counted


def frequent_ids(examples: Any, size: int, ends: Sequence[int], vocab_size: int) -> list[int]:
    """The most frequent ids of the answers, ascending; end tokens come first, the lowest ids fill up.

    Args:
        examples: The training data, `Example` by index; of many, evenly spread ones are counted.
        size: Ids to choose.
        ends: Ids that end an answer.
        vocab_size: Ids of the verifier.
    """
    total = len(examples)
    counted = min(total, MOST_EXAMPLES)
    counts: Counter[int] = Counter()
    for step in range(counted):
        counts.update(examples[step * total // counted].response.tolist())
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = list(dict.fromkeys(chain(ends, ranked, range(vocab_size))))
    return sorted(chosen[:size])
