"""Training examples and batches. Batches stay lists: drafter and verifier read a prompt differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tiger.backbones.base import Prompt


@dataclass
class Example:
    """A prompt and the answer to learn from.

    Attributes:
        prompt: The request.
        response: Token ids [R], the end token included unless the answer was cut at a limit.
        source: Name of the source.
        tag: Task of the question, one of `filters.TAGS`.
    """

    prompt: Prompt
    response: Tensor
    source: str
    tag: str


class Batch:
    """Several examples. Not a data class: Lightning would copy into it, and refuse the frozen prompts.

    Args:
        examples: The examples.
    """

    def __init__(self, examples: list[Example]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def __repr__(self) -> str:
        return f"Batch({[example.prompt.id for example in self.examples]})"

    def to(self, device: torch.device | str, **options: Any) -> Batch:
        """A batch with the responses on a device; pictures are moved by the backbone that reads them."""
        moved = [
            replace(example, response=example.response.to(device, **options)) for example in self.examples
        ]
        return Batch(moved)


def collate(examples: list[Example]) -> Batch:
    """Makes a batch."""
    return Batch(examples)
