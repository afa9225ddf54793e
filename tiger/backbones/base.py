"""What the rest of TIGER knows of a model family: prompts, visual banks, and assembled sequences.

Shape letters used across the project: `B` batch, `G` group, `T` text tokens, `S` block tokens, `N` visual
tokens, `K` routed tokens, `D` hidden, `H` heads, `V` vocabulary, `M` tree nodes, `A` position axes
or, in training, anchors, `R` answer tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from tiger.backbones.attention import record_attention
from tiger.backbones.bank import VisualBank
from tiger.backbones.cache import BlockCache
from tiger.backbones.chat import UnusablePrompt, check_text, messages, video_options

if TYPE_CHECKING:
    from PIL.Image import Image

    from tiger.backbones.videos import Video


class PromptTooLong(UnusablePrompt):
    """A prompt leaves no room for an answer in the context of a model."""

    reason = "prompt_too_long"


@dataclass(frozen=True)
class Prompt:
    """One request of a user.

    Attributes:
        text: The question.
        images: Pictures, placed before the text in this order, or where `<image>` stands in the text.
        system: System message, empty for none.
        id: Name of the request in records and reports; its seed is derived from it.
        videos: Videos, placed between pictures and text.
        prepared: Model inputs that were made elsewhere; text, images and videos are then not read.
    """

    text: str
    images: tuple[Image, ...] = ()
    system: str = ""
    id: str = ""
    videos: tuple[Video, ...] = ()
    prepared: ModelInputs | None = None


@dataclass(frozen=True)
class ModelInputs:
    """A prompt as one backbone reads it.

    Attributes:
        ids: Token ids [T], one image token per visual token.
        position_ids: Positions [A, T].
        visual: Bool mask [T] of the visual tokens.
        pixels: Named image and video tensors for `Backbone.encode`.
    """

    ids: Tensor
    position_ids: Tensor
    visual: Tensor
    pixels: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def next_position(self) -> int:
        """Position of the first token of the answer, on every axis."""
        return int(self.position_ids.max()) + 1

    @property
    def text_behind(self) -> Tensor:
        """Ids of the text behind the last visual token; all of it without one."""
        places = self.visual.nonzero()[:, 0]
        return self.ids if not len(places) else self.ids[int(places[-1]) + 1 :]


@dataclass(frozen=True)
class Assembled:
    """Right-padded rows ready for a language model.

    Attributes:
        embeddings: [B, T, D].
        position_ids: [A, B, T].
        lengths: Valid tokens of each row.
        visual: Bool mask [B, T] of visual tokens.
        deepstack: Rows [sum of visual tokens, D] per deepstack layer, in row-major order.
        bank_rows: Bank row of each token [B, T], -1 for text.
    """

    embeddings: Tensor
    position_ids: Tensor
    lengths: list[int]
    visual: Tensor
    deepstack: tuple[Tensor, ...]
    bank_rows: Tensor


def assemble(
    inputs: Sequence[ModelInputs],
    banks: Sequence[VisualBank],
    embedded: Sequence[Tensor],
    rows: Sequence[Tensor] | None = None,
    suffixes: Sequence[Tensor] | None = None,
) -> Assembled:
    """Puts chosen visual tokens at the image's place among the text, keeping original positions.

    Args:
        inputs: One `ModelInputs` per row.
        banks: The banks of the rows. Row N of a bank, if present, is the global token, which stands after the
            last visual token of the prompt.
        embedded: Embeddings [T, D] of `inputs.ids` (visual places are ignored).
        rows: Ascending bank rows to show per request; all of them by default.
        suffixes: Embeddings [R, D] of the tokens that follow the prompt, per row.

    Returns:
        The padded batch.
    """
    pieces = []
    for index, (entry, bank, text) in enumerate(zip(inputs, banks, embedded, strict=True)):
        shown = torch.arange(len(bank), device=text.device) if rows is None else rows[index]
        suffix = text[:0] if suffixes is None else suffixes[index]
        pieces.append(_assemble_row(entry, bank, text, shown, suffix))
    length = max(len(piece[0]) for piece in pieces)
    pad = torch.nn.functional.pad
    return Assembled(
        embeddings=torch.stack([pad(p[0], (0, 0, 0, length - len(p[0]))) for p in pieces]),
        position_ids=torch.stack([pad(p[1], (0, length - p[1].shape[1])) for p in pieces], dim=1),
        lengths=[len(p[0]) for p in pieces],
        visual=torch.stack([pad(p[2] >= 0, (0, length - len(p[2]))) for p in pieces]),
        deepstack=tuple(torch.cat([p[3][i] for p in pieces]) for i in range(len(pieces[0][3]))),
        bank_rows=torch.stack([pad(p[2], (0, length - len(p[2])), value=-1) for p in pieces]),
    )


def _assemble_row(
    entry: ModelInputs, bank: VisualBank, text: Tensor, shown: Tensor, suffix: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Embeddings [T', D], positions [A, T'], bank rows [T'] and deepstack rows of one request."""
    words = (~entry.visual).nonzero()[:, 0]
    places = entry.visual.nonzero()[:, 0]
    last = places[-1:] if len(places) else places
    slots = torch.cat([places, last])[shown] if len(shown) else places[:0]
    keys = torch.cat([words * 2, slots * 2 + (shown >= len(places)).long()])
    order = keys.argsort(stable=True)
    embeddings = torch.cat([text[words], bank.tokens[shown].to(text.dtype)])[order]
    positions = torch.cat([entry.position_ids[:, words], bank.position_ids[:, shown]], dim=1)[:, order]
    bank_rows = torch.cat([torch.full_like(words, -1), shown])[order]
    if len(suffix):
        steps = torch.arange(len(suffix), device=positions.device) + entry.next_position
        embeddings = torch.cat([embeddings, suffix])
        positions = torch.cat([positions, steps.expand(positions.shape[0], -1)], dim=1)
        bank_rows = torch.cat([bank_rows, torch.full_like(steps, -1)])
    return embeddings, positions, bank_rows, [rows[shown] for rows in bank.deepstack]


class Backbone(nn.Module, ABC):
    """A vision-language model with explicit positions, masks and caches; one subclass per model family.

    Args:
        model: The loaded model of transformers.
        processor: Its processor.

    Attributes:
        num_axes: Position axes A.
        reads_video: Whether prompts may hold videos.
        pixel_names: Image and video tensors that the processor makes and `unbatch` reads.
        eos_ids: Ids that end an answer.
        vocab_size: Ids V that are scored: the tokenizer's, without the rows that pad the model's output.

    Raises:
        ValueError: If the model's attention cannot take explicit masks, or model and processor do not agree
            on the image token.
    """

    num_axes = 1
    reads_video = False
    pixel_names: tuple[str, ...] = ()
    model: Any
    processor: Any

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__()
        self.model = model
        self.processor = processor
        self.text_config: Any = model.config.get_text_config()
        attention = self.text_config._attn_implementation
        if attention not in ("sdpa", "eager"):
            raise ValueError(
                f"Attention {attention!r} takes no explicit masks; load the model with 'sdpa' or 'eager'."
            )
        if processor.image_token_id != model.config.image_token_id:
            raise ValueError(
                f"The processor marks images with token {processor.image_token_id}, the model looks for "
                f"token {model.config.image_token_id}. Take the files of both from one checkpoint."
            )
        known = max(processor.tokenizer.get_vocab().values()) + 1
        self.vocab_size = min(int(self.text_config.vocab_size), known)
        eos = model.generation_config.eos_token_id
        eos = self.text_config.eos_token_id if eos is None else eos
        self.eos_ids: tuple[int, ...] = (
            () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)
        )

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.processor.tokenizer

    @property
    def hidden_size(self) -> int:
        """Width D of the language model."""
        return int(self.text_config.hidden_size)

    @property
    def num_layers(self) -> int:
        """Layers of the language model."""
        return int(self.text_config.num_hidden_layers)

    @property
    def num_deepstack(self) -> int:
        """First layers of the language model behind which visual features are added."""
        return 0

    @property
    def max_positions(self) -> int:
        """Context limit, tokens."""
        return int(self.text_config.max_position_embeddings)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        dtype: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return dtype

    def prepare(self, prompt: Prompt) -> ModelInputs:
        """Applies the chat template and the image and video processors.

        Raises:
            ValueError: If the prompt is longer than the context, holds videos that the family cannot read or
                tokens that stand for images, or there is no chat template or none with a place for its
                images or videos.
        """
        if prompt.prepared is not None:
            inputs = prompt.prepared
        elif prompt.videos and not self.reads_video:
            raise ValueError(
                f"The prompt {prompt.id!r} holds a video, which {self.model.config.model_type} models do not "
                "read. Give single frames as images, or choose a Qwen model."
            )
        elif not self.processor.chat_template:
            raise ValueError(
                "The processor has no chat template. Put the chat_template.jinja (or .json) of the model's "
                "own repository beside its processor files, or set processor.chat_template."
            )
        else:
            check_text(prompt.text, len(prompt.images), self.processor, prompt.id)
            batch = self.processor.apply_chat_template(
                messages(prompt),
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                add_generation_prompt=True,
                processor_kwargs=video_options(prompt.videos),
            )
            pixels = {name: batch[name] for name in self.pixel_names if name in batch}
            inputs = self.unbatch(batch["input_ids"], **pixels)[0]
        self.check_length(inputs, prompt.id)
        return inputs

    @abstractmethod
    def unbatch(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **pixels: Tensor | None
    ) -> list[ModelInputs]:
        """Splits a batch made by the processor into requests, without their padding.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: Mask [B, T], 0 at padding.
            pixels: The processor's image and video tensors of the whole batch, see `pixel_names`.

        Raises:
            ValueError: If these tensors and the image tokens do not match.
        """

    @abstractmethod
    def encode(self, inputs: Sequence[ModelInputs], use_importance: bool = False) -> list[VisualBank]:
        """Encodes images and videos of all requests in one pass; a text-only request gets an empty bank.

        Args:
            inputs: The requests.
            use_importance: Whether the banks get the importance of their tokens, which costs the attention
                weights of one layer of the vision tower.
        """

    @abstractmethod
    def run(
        self,
        embeddings: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        cache: Cache | None = None,
        visual: Tensor | None = None,
        deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        """Runs the language model.

        Args:
            embeddings: [B, T, D].
            position_ids: [A, B, T].
            mask: [B, 1, T, past + T], bool (True: attend) or an additive bias; None attends to everything.
            cache: Cache to read and extend.
            visual: Bool mask [B, T] of visual tokens, needed with deepstack rows.
            deepstack: Rows [number of visual tokens, D] per deepstack layer.

        Returns:
            Hidden states [B, T, D] after the final norm.
        """

    def run_with_attention(
        self, batch: Assembled, num_layers: int, power: float = 1.0, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs an assembled batch and also returns where its last layers look.

        Args:
            batch: The assembled rows.
            num_layers: Last layers to average over.
            power: Exponent of each head's attention; above 1 the heads that look at one place count most.
            cache: An empty cache to fill.

        Returns:
            Hidden states [B, T, D] and attention to that power [B, T, T], averaged over heads and layers.
        """
        layers = self.model.get_decoder().layers[-num_layers:]
        return record_attention(layers, power, lambda: self.run_assembled(batch, cache))

    def vision_parameters(self) -> list[nn.Parameter]:
        """What turns pixels into bank tokens: every weight outside the language model and its head."""
        language = (self.model.get_decoder(), self.model.get_output_embeddings())
        own = {id(parameter) for module in language for parameter in module.parameters()}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in own]

    def unused_parameters(self) -> list[nn.Parameter]:
        """Vision weights that no bank token depends on, so that they never get a gradient."""
        return []

    def embed(self, ids: Tensor) -> Tensor:
        """Text embeddings [..., D] of token ids [...]."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids)
        return embeddings

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [..., V] of hidden states [..., D]; ids that pad the vocabulary get none."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)[..., : self.vocab_size]
        return logits

    def new_cache(self, batch_size: int, capacity: int) -> BlockCache:
        """An empty cache for this model."""
        return BlockCache(self.num_layers, batch_size, capacity, self.device)

    def run_assembled(self, batch: Assembled, cache: Cache | None = None) -> Tensor:
        """Runs an assembled batch from its beginning, causally; hidden states [B, T, D]."""
        rows, length = batch.embeddings.shape[:2]
        causal = torch.ones(length, length, dtype=torch.bool, device=batch.embeddings.device).tril()
        mask = causal.expand(rows, 1, -1, -1)
        return self.run(batch.embeddings, batch.position_ids, mask, cache, batch.visual, batch.deepstack)

    def check_length(self, inputs: ModelInputs, name: str) -> None:
        """Checks that a prompt leaves room for an answer.

        Raises:
            PromptTooLong: If it does not.
        """
        if len(inputs.ids) >= self.max_positions:
            raise PromptTooLong(
                f"The prompt {name!r} has {len(inputs.ids)} tokens, the context holds {self.max_positions}. "
                "Shorten the text, lower the processor's largest image size, or take fewer frames of a video."
            )
