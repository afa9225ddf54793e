"""Takes batches that a processor made apart."""

from __future__ import annotations

from collections.abc import Sequence


def spans(counts: Sequence[int], sizes: Sequence[int], kind: str = "image") -> list[slice]:
    """Which images belong to each row: those that its visual tokens have places for, in order.

    Args:
        counts: Visual tokens of each row.
        sizes: Visual tokens of each image of the batch.
        kind: What is counted, for the error.

    Raises:
        ValueError: If images and visual tokens do not match.
    """
    found, start = [], 0
    for row, missing in enumerate(counts):
        stop = start
        while missing > 0 and stop < len(sizes):
            missing -= sizes[stop]
            stop += 1
        if missing:
            raise ValueError(
                f"The {kind} tokens of row {row} and its {kind}s differ by {abs(missing)} visual tokens; "
                "pass the token ids and pixel tensors of one call of the model's own processor."
            )
        found.append(slice(start, stop))
        start = stop
    if start < len(sizes):
        raise ValueError(
            f"{len(sizes)} {kind}s were given, the token ids have places for {start}. "
            f"Does the chat template write the {kind} token?"
        )
    return found
