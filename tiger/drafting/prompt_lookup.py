"""Prompt lookup: what followed the last words when they were said before is proposed again."""

from __future__ import annotations

from tiger.drafting.training_free import Branches, TrainingFree

Places = dict[tuple[int, ...], int]  # where the text went on after each n-gram


class PromptLookup(TrainingFree[Places]):
    """A chain copied from the request's own text (Saxena 2023; `prompt_lookup_num_tokens` of transformers).

    The longest n-gram that ends the text and stood in it before decides. Of several places the last one
    counts, where the originals take the first; visual placeholders are no part of the text. Nothing is
    proposed where no n-gram is found, and a copy ends with the text.

    Args:
        ngram: Longest n-gram that is looked up, tokens.

    Raises:
        ValueError: If it is below one.
    """

    def __init__(self, ngram: int = 3) -> None:
        if ngram < 1:
            raise ValueError(f"ngram is {ngram}; look up n-grams of one token or more.")
        self.ngram = ngram
        super().__init__()

    def num_nodes(self, block_size: int) -> int:
        """The tokens of a chain."""
        return block_size

    def new_memory(self) -> Places:
        """No n-gram has been seen."""
        return {}

    def read(self, memory: Places, text: list[int], num_new: int) -> None:
        """Notes where the text goes on after each n-gram; the root will stand behind the last one."""
        for place in range(len(text) - num_new + 1, len(text) + 1):
            for size in range(1, min(self.ngram, place) + 1):
                memory[tuple(text[place - size : place])] = place

    def branches(self, memory: Places, text: list[int], depth: int) -> Branches:
        """The continuation of the longest known n-gram."""
        for size in range(min(self.ngram, len(text)), 0, -1):
            place = memory.get(tuple(text[-size:]))
            if place is not None:
                copied = text[place : place + depth]
                return copied, list(range(-1, len(copied) - 1))
        return [], []
