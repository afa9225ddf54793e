"""From records to training examples: prompt template, token ids, length limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_modules.collate import Example
from data_modules.mixture import Mixture
from data_modules.sources import Record
from tiger.backbones.base import Prompt
from tiger.backbones.folders import TEXT_FILES, resolve
from tiger.backbones.loading import load_processor


class PromptFormat:
    """How a record becomes a prompt, and what it costs in tokens.

    Args:
        verifier: Hub id, folder or shipped name of the model whose tokenizer the pair shares.
        template: The user's text; `{question}` stands for the record's question.
        max_length: Most tokens of prompt and response together.

    Raises:
        FileNotFoundError: If there is no such folder, or it lacks files of the processor.
        ValueError: If the template has no place for the question.
    """

    def __init__(self, verifier: str, template: str = "{question}", max_length: int = 1024) -> None:
        if "{question}" not in template:
            raise ValueError(f"The prompt template {template!r} must contain {{question}}.")
        self.processor: Any = load_processor(resolve(verifier, TEXT_FILES))
        self.template, self.max_length = template, max_length
        self._frames: dict[tuple[tuple[int, int], ...], int] = {}  # tokens around the text, by image sizes

    def prompt(self, record: Record) -> Prompt:
        """The request that a record asks."""
        return Prompt(self.template.replace("{question}", record.prompt), record.images, id=record.id)

    def length(self, prompt: Prompt) -> int:
        """Tokens of a prompt, visual tokens included, without encoding its images."""
        content = [*({"type": "image"} for _ in prompt.images), {"type": "text", "text": prompt.text}]
        text = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        words = len(self.processor.tokenizer(text)["input_ids"]) - len(prompt.images)
        sizes = [(image.height, image.width) for image in prompt.images]
        return words + sum(self.processor._get_num_multimodal_tokens(sizes)["num_image_tokens"])

    def room(self, prompt: Prompt, wanted: int) -> int:
        """Tokens that are left for a response of `wanted` tokens; zero or less if the prompt is too long."""
        sizes = tuple(image.size for image in prompt.images)
        if sizes not in self._frames:
            self._frames[sizes] = self.length(replace(prompt, text=""))
        # A token is one byte or more, so most prompts need not be tokenized to know that they fit.
        if self._frames[sizes] + len(prompt.text.encode()) + wanted <= self.max_length:
            return wanted
        return min(self.max_length - self.length(prompt), wanted)

    def too_long(self, record: Record) -> str | None:
        """The reason to drop a record whose prompt leaves no room for a response."""
        return "prompt_too_long" if self.room(self.prompt(record), 1) < 1 else None

    def answer_ids(self, text: str) -> Tensor:
        """Token ids [R] of an answer and the end token."""
        tokenizer = self.processor.tokenizer
        return torch.tensor([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])


class Examples(Dataset[Example]):
    """Training examples of a mixture, made on access.

    Args:
        mixture: The records.
        form: How a record becomes a prompt.
        responses: Token ids of the response to a record's key; by default its reference answer.
    """

    def __init__(
        self, mixture: Mixture, form: PromptFormat, responses: Callable[[str], list[int]] | None = None
    ) -> None:
        self.mixture, self.form, self.responses = mixture, form, responses

    def __len__(self) -> int:
        return len(self.mixture)

    def __getitem__(self, index: int) -> Example:
        """Makes one example; a response is cut at the length limit."""
        record = self.mixture[index]
        prompt = self.form.prompt(record)
        if self.responses is not None:
            response = torch.tensor(self.responses(record.id))
        else:
            response = self.form.answer_ids(next(iter(record.answers), ""))
        return Example(prompt, response[: self.form.room(prompt, len(response))], record.source, record.tag)
