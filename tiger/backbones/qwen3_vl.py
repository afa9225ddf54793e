"""Qwen3-VL: transformers' own classes behind the interface that the rest of TIGER uses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers.cache_utils import Cache

from tiger.backbones import qwen
from tiger.backbones.attention import explicit_mask
from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs


class Qwen3VLBackbone(Backbone):
    """Qwen3-VL: three position axes, and deepstack rows added after the first language layers.

    A video is a run of visual tokens per frame group, each behind its time in words.
    """

    num_axes = 3
    reads_video = True
    pixel_names = qwen.PIXEL_NAMES

    @property
    def num_deepstack(self) -> int:
        """First layers of the language model behind which visual features are added."""
        return len(self.model.config.vision_config.deepstack_visual_indexes)

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
            visual_pos_masks=visual if deepstack else None,
            deepstack_visual_embeds=list(deepstack) or None,
        ).last_hidden_state
        return hidden
