"""Speculative decoding behind transformers' own call: `model.generate(**inputs, custom_generate=...)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    GenerationMode,
    MaxLengthCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tiger.backbones.base import Prompt
from tiger.backbones.loading import FAMILIES, image_difference
from tiger.decoding.acceptance import Sampling
from tiger.decoding.records import Generation
from tiger.decoding.requests import Listener
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.routed import RoutedDrafter

OUTPUT_OPTIONS = (
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)


def speculative_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    drafter: RoutedDrafter | DraftHead,
    block_size: int = 8,
    seed: int | None = None,
    records: list[Generation] | None = None,
    listener: Listener | None = None,
    pixel_values: Tensor | None = None,
    image_grid_thw: Tensor | None = None,
    image_sizes: Tensor | None = None,
    pixel_values_videos: Tensor | None = None,
    video_grid_thw: Tensor | None = None,
    second_per_grid_ts: Tensor | None = None,
    mm_token_type_ids: Tensor | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """The decoding loop of `model.generate(**inputs, custom_generate=speculative_generate, drafter=drafter)`.

    The image and video tensors are named arguments because `generate` hands over what a custom function
    names; otherwise it would encode them for the verifier only.

    Args:
        model: The verifier.
        input_ids: Token ids [B, T], padded on the left.
        logits_processor: What `generate` made of its options; temperature, top-k and top-p are honoured.
        stopping_criteria: What `generate` made of its options; length and end tokens are honoured.
        generation_config: The options.
        drafter: The drafter; it must read images as the verifier does. A draft head must have been loaded
            beside this model.
        block_size: Tokens drafted in one round.
        seed: Seed of sampling; drawn from torch's global generator by default.
        records: List to which the generations and their rounds are added.
        listener: Called with a row's index and its new tokens after each round. It stands in for `streamer`,
            which `generate` does not hand on to a custom function, not even its end.
        pixel_values: The processor's patches or tiles of all images.
        image_grid_thw: The processor's grids of all images [images, 3] (Qwen).
        image_sizes: Heights and widths of all images [images, 2] (LLaVA-NeXT).
        pixel_values_videos: The processor's patches of all videos.
        video_grid_thw: The processor's grids of all videos [videos, 3].
        second_per_grid_ts: Seconds between the frame groups of each video (Qwen2.5-VL).
        mm_token_type_ids: Not needed; accepted because the processor returns it.
        model_kwargs: Further model inputs of `generate`.

    Returns:
        Prompt and answer ids [B, T + longest answer], padded on the right.

    Raises:
        ValueError: If an option cannot be honoured, the drafter reads images differently, or the head belongs
            to another model.
    """
    _refuse_options(generation_config, stopping_criteria, model_kwargs)
    sampling = _sampling(generation_config, logits_processor)
    reader = drafter.verifier if isinstance(drafter, DraftHead) else drafter.backbone
    if isinstance(drafter, DraftHead) and reader.model is not model:
        raise ValueError(
            "The draft head was loaded beside another model. Load it with `load_head(folder, verifier)`, and "
            "call `verifier.model.generate`."
        )
    if difference := image_difference(model, reader.model):
        raise ValueError(
            f"Drafter and verifier must share image tensors here, but {difference}. "
            "Use SpeculativeDecoder, which prepares images for each."
        )
    backbone = FAMILIES[model.config.model_type][1](model, reader.processor)
    backbone.eos_ids = _end_ids(stopping_criteria)
    rows = backbone.unbatch(
        input_ids,
        model_kwargs.get("attention_mask"),
        pixel_values=pixel_values,
        image_grid_thw=image_grid_thw,
        image_sizes=image_sizes,
        pixel_values_videos=pixel_values_videos,
        video_grid_thw=video_grid_thw,
        second_per_grid_ts=second_per_grid_ts,
    )
    seed = int(torch.randint(2**31, ())) if seed is None else seed
    limit = int(generation_config.max_length) - input_ids.shape[1]
    decoder = SpeculativeDecoder(backbone, drafter, block_size, limit, sampling, seed)
    answers = decoder.generate([Prompt("", prepared=row) for row in rows], listener)
    if records is not None:
        records += answers
    width = max(len(answer.tokens) for answer in answers)
    padding = generation_config.pad_token_id
    if padding is None:
        padding = next(iter(backbone.eos_ids), 0)
    padded = [answer.tokens + [padding] * (width - len(answer.tokens)) for answer in answers]
    return torch.cat([input_ids, torch.tensor(padded, device=input_ids.device)], dim=1)


def _refuse_options(
    config: GenerationConfig, criteria: StoppingCriteriaList, model_kwargs: dict[str, Any]
) -> None:
    """Raises a `ValueError` for whatever `speculative_generate` would have to ignore."""
    if config.get_generation_mode() not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        mode = config.get_generation_mode().value
        raise ValueError(
            f"Speculative decoding cannot do {mode}; use greedy decoding or sampling (num_beams=1)."
        )
    if (config.num_return_sequences or 1) > 1:
        raise ValueError(
            f"num_return_sequences is {config.num_return_sequences}; repeat the prompts instead."
        )
    if chosen := [name for name in OUTPUT_OPTIONS if getattr(config, name)]:
        raise ValueError(f"Cannot honour {', '.join(chosen)}; only token ids are returned (see `records`).")
    for criterion in criteria:
        if not isinstance(criterion, MaxLengthCriteria | EosTokenCriteria):
            raise ValueError(f"Cannot honour the stopping criterion {type(criterion).__name__}; remove it.")
    encoded = [
        name for name, value in (model_kwargs.get("mm_encoder_outputs") or {}).items() if value is not None
    ]
    if encoded or model_kwargs.get("inputs_embeds") is not None:
        given = ", ".join(encoded) or "text"
        raise ValueError(
            f"Embedded inputs ({given}) were given; pass input_ids and images, which both models read."
        )
    cache = model_kwargs.get("cache")
    if cache is not None and int(cache.get_seq_length()) > 0:
        raise ValueError("A filled cache was given; speculative decoding reads the whole prompt itself.")


def _sampling(config: GenerationConfig, processors: LogitsProcessorList) -> Sampling:
    """The sampling that the logits processors amount to."""
    temperature, top_k, top_p = 1.0, 0, 1.0
    for processor in processors:
        if isinstance(processor, TemperatureLogitsWarper):
            temperature = processor.temperature
        elif isinstance(processor, TopKLogitsWarper):
            top_k = processor.top_k
        elif isinstance(processor, TopPLogitsWarper):
            top_p = processor.top_p
        else:
            raise ValueError(
                f"Cannot honour {type(processor).__name__}; of the options that change logits, temperature, "
                "top_k and top_p are supported. Reset the others (for example repetition_penalty=1.0)."
            )
    return Sampling(temperature, top_k, top_p) if config.do_sample else Sampling()


def _end_ids(criteria: StoppingCriteriaList) -> tuple[int, ...]:
    """End tokens among the stopping criteria."""
    found = [c.eos_token_id.flatten().tolist() for c in criteria if isinstance(c, EosTokenCriteria)]
    return tuple(token for tokens in found for token in tokens)
