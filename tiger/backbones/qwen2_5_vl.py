"""Qwen2.5-VL: transformers' own classes behind the interface that the rest of TIGER uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from tiger.backbones import qwen
from tiger.backbones.attention import explicit_mask
from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs


class Qwen25VLBackbone(Backbone):
    """Qwen2.5-VL: three position axes, no deepstack.

    A video is one run of visual tokens whose first axis counts time.

    Args:
        model: The loaded model.
        processor: Its processor.

    Raises:
        ValueError: If the model's attention cannot take explicit masks, or looks back over a window only.
    """

    num_axes = 3
    reads_video = True
    pixel_names = qwen.PIXEL_NAMES

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(model, processor)
        if "sliding_attention" in self.text_config.layer_types:
            raise ValueError(
                "This model limits attention to a sliding window, which explicit masks would switch off; "
                "set use_sliding_window to false in its config.json, as Qwen2.5-VL is published."
            )

    def unbatch(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **pixels: Tensor | None
    ) -> list[ModelInputs]:
        """Splits a batch made by the processor into requests, see `Backbone.unbatch`."""
        return qwen.unbatch(self, input_ids, attention_mask, pixels)

    def encode(self, inputs: Sequence[ModelInputs], use_importance: bool = False) -> list[VisualBank]:
        """Encodes images and videos, see `Backbone.encode`."""
        return qwen.encode(self, inputs, use_importance)

    def run(
        self,
        embeddings: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        cache: Cache | None = None,
        visual: Tensor | None = None,
        deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        """Runs the language model, see `Backbone.run`."""
        hidden: Tensor = self.model.model.language_model(
            inputs_embeds=embeddings,
            position_ids=position_ids,
            attention_mask=explicit_mask(mask, self.text_config._attn_implementation, embeddings.dtype),
            cache=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return hidden
