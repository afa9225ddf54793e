"""Qwen3-VL: transformers' own classes behind the interface that the rest of TIGER uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tiger.backbones.attention import explicit_mask
from tiger.backbones.base import Backbone, ModelInputs, VisualBank
from tiger.backbones.grids import Grid


class Qwen3VLBackbone(Backbone):
    """Qwen3-VL: three position axes, and deepstack rows added after the first language layers.

    Args:
        model: The loaded model.
        processor: Its processor.
    """

    num_axes = 3
    pixel_names = ("pixel_values", "image_grid_thw")

    def unbatch(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **pixels: Tensor | None
    ) -> list[ModelInputs]:
        """Splits a batch made by the processor into requests, without their padding.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: Mask [B, T], 0 at padding.
            pixels: `pixel_values` [patches, values] and `image_grid_thw` [images, 3] of the whole batch.

        Raises:
            ValueError: If image tensors and image tokens do not match.
        """
        values, grids = pixels.get("pixel_values"), pixels.get("image_grid_thw")
        patches = [] if grids is None else grids.prod(-1).tolist()
        merged = self.model.config.vision_config.spatial_merge_size**2
        rows, image, patch = [], 0, 0
        for row, ids in enumerate(input_ids):
            kept = ids if attention_mask is None else ids[attention_mask[row].bool()]
            missing, first, start = int((kept == self.model.config.image_token_id).sum()), image, patch
            while missing > 0 and image < len(patches):
                missing -= patches[image] // merged
                patch += patches[image]
                image += 1
            if missing:
                raise ValueError(
                    f"The image tokens of row {row} and its images differ by {abs(missing)} visual tokens; "
                    "pass input_ids, pixel_values and image_grid_thw of one processor call."
                )
            if image == first or values is None or grids is None:
                rows.append(self._inputs(kept, None, None))
            else:
                rows.append(self._inputs(kept, values[start:patch], grids[first:image]))
        if image < len(patches):
            raise ValueError(f"{len(patches)} images were given, the token ids have places for {image}.")
        return rows

    def _inputs(self, ids: Tensor, values: Tensor | None, grids: Tensor | None) -> ModelInputs:
        """One request; its explicit positions leave the model object's own position state untouched."""
        visual = ids == self.model.config.image_token_id
        positions, _ = self.model.model.get_rope_index(
            ids[None],
            mm_token_type_ids=visual[None].int(),
            image_grid_thw=grids,
            attention_mask=torch.ones_like(ids)[None],
        )
        pixels = {} if values is None or grids is None else {"pixel_values": values, "image_grid_thw": grids}
        return ModelInputs(
            ids.to(self.device),
            positions[:, 0].to(self.device),
            visual.to(self.device),
            {key: value.to(self.device) for key, value in pixels.items()},
        )

    def encode(self, inputs: Sequence[ModelInputs]) -> list[VisualBank]:
        """Encodes the images of all requests in one pass; a text-only request gets an empty bank."""
        pixels = [entry.pixels["pixel_values"] for entry in inputs if entry.pixels]
        if not pixels:
            return [self._empty_bank() for _ in inputs]
        grids = torch.cat([entry.pixels["image_grid_thw"] for entry in inputs if entry.pixels])
        output = self.model.model.visual(torch.cat(pixels).to(self.dtype), grid_thw=grids)
        merge = self.model.config.vision_config.spatial_merge_size
        banks, start = [], 0
        for entry in inputs:
            count = int(entry.visual.sum())
            rows = slice(start, start + count)
            start += count
            merged = [
                Grid(frames, height // merge, width // merge)
                for frames, height, width in entry.pixels.get("image_grid_thw", grids[:0]).tolist()
            ]
            deepstack = tuple(feature[rows] for feature in output.deepstack_features or ())
            positions = entry.position_ids[:, entry.visual]
            banks.append(VisualBank(output.pooler_output[rows], positions, deepstack, tuple(merged)))
        return banks

    def _empty_bank(self) -> VisualBank:
        empty = torch.zeros(0, self.hidden_size, dtype=self.dtype, device=self.device)
        layers = len(self.model.config.vision_config.deepstack_visual_indexes)
        positions = torch.zeros(self.num_axes, 0, dtype=torch.long, device=self.device)
        return VisualBank(empty, positions, (empty,) * layers)

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
