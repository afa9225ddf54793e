"""What the drafter sees of the pictures in training, and what is remembered of each example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from data_modules.collate import Example
from tiger.backbones.bank import VisualBank
from tiger.backbones.base import ModelInputs, Prompt
from tiger.drafting.routed import RoutedDrafter

T = TypeVar("T")
View = tuple[ModelInputs, VisualBank]


def look(drafter: RoutedDrafter, examples: list[Example], train_vision: bool) -> list[View]:
    """Prompts as the drafter reads them, without their pixels, and their visual banks.

    Args:
        drafter: The drafter.
        examples: The examples.
        train_vision: Whether the banks carry gradients to the vision tower, also if there are no pictures.
    """
    with torch.set_grad_enabled(train_vision and torch.is_grad_enabled()):
        inputs, banks = drafter.encode([example.prompt for example in examples])
        if torch.is_grad_enabled() and not any(map(len, banks)):
            banks = [replace(bank, tokens=bank.tokens + _idle_vision(drafter)) for bank in banks]
    return [(replace(entry, pixels={}), bank) for entry, bank in zip(inputs, banks, strict=True)]


def _idle_vision(drafter: RoutedDrafter) -> Tensor:
    """A zero that gives the tower a gradient of zero, which every rank must have in every step."""
    _, (bank,) = drafter.encode([Prompt("", (Image.new("RGB", (64, 64)),))])
    return 0.0 * torch.stack([rows.sum() for rows in (bank.tokens, *bank.deepstack)]).sum()


def recalled(
    memory: dict[str, T] | None, examples: list[Example], make: Callable[[list[Example]], list[T]]
) -> list[T]:
    """Values of all examples, made in one go where they are not remembered.

    Args:
        memory: Values by the id of the prompt, which receives new ones; None remembers nothing.
        examples: The examples.
        make: Makes the values of some examples.

    Raises:
        ValueError: If values are to be remembered of a prompt without an id.
    """
    if memory is None:
        return make(examples)
    if not all(example.prompt.id for example in examples):
        raise ValueError("remember needs prompts with an id of their own; name them or set remember false.")
    if new := [example for example in examples if example.prompt.id not in memory]:
        memory.update((e.prompt.id, value) for e, value in zip(new, make(new), strict=True))
    return [memory[example.prompt.id] for example in examples]
