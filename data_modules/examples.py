"""From records to training examples: prompt template, token ids, length limit."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from data_modules.collate import Example
from data_modules.mixture import Mixture
from data_modules.sources import Record, SkipRow
from tiger.backbones.base import Prompt, PromptTooLong
from tiger.backbones.chat import UnusablePrompt, check_text
from tiger.backbones.folders import TEXT_FILES, resolve
from tiger.backbones.loading import load_processor

log = logging.getLogger(__name__)
Size = tuple[int, int]  # width and height, pixels


class PromptFormat:
    """How a record becomes a prompt, and what it costs in tokens.

    Args:
        verifier: Hub id, folder or shipped name of the model whose tokenizer the pair shares.
        template: The user's text; `{question}` stands for the record's question.
        max_length: Most tokens of prompt and response together.
        max_pixels: Most pixels of a picture; larger ones are scaled down.

    Raises:
        FileNotFoundError: If there is no such folder, or it lacks files of the processor.
        ValueError: If the template has no place for the question, or `max_pixels` is not positive.
    """

    def __init__(
        self,
        verifier: str,
        template: str = "{question}",
        max_length: int = 1024,
        max_pixels: int | None = None,
    ) -> None:
        if max_pixels is not None and max_pixels < 1:
            raise ValueError(f"max_pixels is {max_pixels}; give 1 or more, or null for pictures as they are.")
        if "{question}" not in template:
            raise ValueError(f"The prompt template {template!r} must contain {{question}}.")
        self.processor: Any = load_processor(resolve(verifier, TEXT_FILES))
        self.template, self.max_length, self.max_pixels = template, max_length, max_pixels
        self._frames: dict[tuple[Size, ...], int] = {}  # tokens around the text, by image sizes

    @property
    def name(self) -> str:
        """Changes whenever prompts or their lengths do, the tokenizer aside."""
        return f"{self.max_length} {self.max_pixels} {self.template}"

    def prompt(self, record: Record) -> Prompt:
        """The request that a record asks; its pictures are decoded here.

        Raises:
            SkipRow: If a picture cannot be decoded.
        """
        images = []
        for picture, size in zip(record.images, self._sizes(record), strict=True):
            image = picture.decode()
            images.append(image if image.size == size else image.resize(size, Image.Resampling.BICUBIC))
        return Prompt(self._text(record), tuple(images), id=record.id)

    def length(self, text: str, sizes: Sequence[Size]) -> int:
        """Tokens of a prompt, visual tokens included, without its pictures.

        Args:
            text: The user's text.
            sizes: Sizes of the pictures.
        """
        content = [*({"type": "image"} for _ in sizes), {"type": "text", "text": text}]
        chat = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        words = len(self.processor.tokenizer(chat)["input_ids"]) - len(sizes)
        turned = [(height, width) for width, height in sizes]
        return words + sum(self.processor._get_num_multimodal_tokens(turned)["num_image_tokens"])

    def room(self, record: Record, wanted: int) -> int:
        """Tokens that are left for a response of `wanted` tokens; zero or less if the prompt is too long."""
        text, sizes = self._text(record), self._sizes(record)
        if sizes not in self._frames:
            self._frames[sizes] = self.length("", sizes)
        # A token is one byte or more, so most prompts need not be tokenized to know that they fit.
        if self._frames[sizes] + len(text.encode()) + wanted <= self.max_length:
            return wanted
        return min(self.max_length - self.length(text, sizes), wanted)

    def unusable(self, record: Record) -> str | None:
        """The reason to drop a record: its text marks pictures, or leaves no room for a response."""
        try:
            check_text(self._text(record), len(record.images), self.processor, record.id)
        except UnusablePrompt as error:
            return error.reason
        return PromptTooLong.reason if self.room(record, 1) < 1 else None

    def _text(self, record: Record) -> str:
        return self.template.replace("{question}", record.prompt)

    def _sizes(self, record: Record) -> tuple[Size, ...]:
        """Sizes of the pictures as they are shown, scaled down to `max_pixels`."""
        return tuple(_scaled(image.size, self.max_pixels) for image in record.images)

    def answer_ids(self, text: str) -> Tensor:
        """Token ids [R] of an answer and the end token."""
        tokenizer = self.processor.tokenizer
        return torch.tensor([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])


def _scaled(size: Size, max_pixels: int | None) -> Size:
    width, height = size
    if max_pixels is None or width * height <= max_pixels:
        return size
    scale = math.sqrt(max_pixels / (width * height))
    return max(int(width * scale), 1), max(int(height * scale), 1)


class Examples(Dataset[Example]):
    """Training examples of a mixture, made on access.

    A picture may turn out to be damaged only now. The next record of the mixture then takes its place, which
    keeps batches full, and its name is logged and kept.

    Args:
        mixture: The records.
        form: How a record becomes a prompt.
        responses: Token ids of the response to a record's key; by default its reference answer.

    Attributes:
        damaged: Names of the replaced records.
    """

    def __init__(
        self, mixture: Mixture, form: PromptFormat, responses: Callable[[str], list[int]] | None = None
    ) -> None:
        self.mixture, self.form, self.responses = mixture, form, responses
        self.damaged: set[str] = set()

    def __len__(self) -> int:
        return len(self.mixture)

    def __getitem__(self, index: int) -> Example:
        """Makes one example; a response is cut at the length limit.

        Raises:
            IndexError: If there is no such example, which also ends a loop over all.
            ValueError: If no picture of the mixture can be decoded.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"There is no example {index} among {len(self)}.")
        for number in (*range(index, len(self)), *range(index)):
            record = self.mixture[number]
            try:
                return self._example(record, self.form.prompt(record))
            except SkipRow:
                if record.id not in self.damaged:
                    log.warning(
                        "The picture of %s cannot be decoded; the next record replaces it.", record.id
                    )
                self.damaged.add(record.id)
        raise ValueError(f"No picture of the {self.mixture.name} split can be decoded; check its files.")

    def _example(self, record: Record, prompt: Prompt) -> Example:
        if self.responses is not None:
            response = torch.tensor(self.responses(record.id))
        else:
            response = self.form.answer_ids(next(iter(record.answers), ""))
        return Example(prompt, response[: self.form.room(record, len(response))], record.source, record.tag)
