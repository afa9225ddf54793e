"""Qwen3-VL: transformers' own classes behind the interface that the rest of TIGER uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.cache_utils import Cache
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from tiger.backbones.base import Assembled, Backbone, ModelInputs, Prompt, VisualBank


class Qwen3VLBackbone(Backbone):
    """Qwen3-VL: three position axes, and deepstack rows added after the first language layers.

    Args:
        model: The loaded model.
        processor: Its processor.

    Raises:
        ValueError: If the model's attention cannot take explicit masks.
    """

    num_axes = 3

    def __init__(self, model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor) -> None:
        super().__init__(model, processor)
        attention = self.text_config._attn_implementation
        if attention not in ("sdpa", "eager"):
            raise ValueError(
                f"Attention {attention!r} takes no explicit masks; load the model with 'sdpa' or 'eager'."
            )

    def prepare(self, prompt: Prompt) -> ModelInputs:
        """Applies the chat template and the image processor.

        Raises:
            ValueError: If the prompt is longer than the context.
        """
        if prompt.prepared is not None:
            self.check_length(prompt.prepared, prompt.id)
            return prompt.prepared
        content = [{"type": "image", "image": image.convert("RGB")} for image in prompt.images]
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*content, {"type": "text", "text": prompt.text}]}
        ]
        if prompt.system:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
        batch = self.processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        )
        pixels = {key: batch.get(key) for key in ("pixel_values", "image_grid_thw")}
        inputs = self.unbatch(batch["input_ids"], **pixels)[0]
        self.check_length(inputs, prompt.id)
        return inputs

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
                (frames, height // merge, width // merge)
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
        # Eager attention adds the mask to the scores, so a bool mask would be silently wrong there.
        eager = self.text_config._attn_implementation == "eager"
        if eager and mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=embeddings.dtype).masked_fill(
                ~mask, torch.finfo(embeddings.dtype).min
            )
        hidden: Tensor = self.model.model.language_model(
            inputs_embeds=embeddings,
            position_ids=position_ids,
            attention_mask=mask,
            cache=cache,
            use_cache=cache is not None,
            visual_pos_masks=visual if deepstack else None,
            deepstack_visual_embeds=list(deepstack) or None,
        ).last_hidden_state
        return hidden

    def run_with_attention(
        self, batch: Assembled, num_layers: int, power: float = 1.0, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs an assembled batch and also returns where its last layers look.

        Attention weights are recomputed from the layers' inputs, so the fused kernel stays in use.

        Args:
            batch: The assembled rows.
            num_layers: Last layers to average over.
            power: Exponent of each head's attention; above 1 the heads that look at one place count most.
            cache: An empty cache to fill.

        Returns:
            Hidden states [B, T, D] and attention to that power [B, T, T], averaged over heads and layers.
        """
        attention = torch.zeros(())

        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal attention
            heads = self._attention(module, kwargs["hidden_states"], kwargs["position_embeddings"])
            attention = attention + heads.pow(power).mean(1)

        layers = self.model.model.language_model.layers[-num_layers:]
        handles = [layer.self_attn.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
        try:
            hidden = self.run_assembled(batch, cache)
        finally:
            for handle in handles:
                handle.remove()
        return hidden, attention / len(layers)

    @staticmethod
    def _attention(module: Any, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Causal attention weights [B, H, T, T] of one layer."""
        shape = (*hidden.shape[:2], -1, module.head_dim)
        query = module.q_norm(module.q_proj(hidden).view(shape)).transpose(1, 2)
        key = module.k_norm(module.k_proj(hidden).view(shape)).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *rope)
        key = key.repeat_interleave(module.num_key_value_groups, dim=1)
        scores = (query @ key.transpose(2, 3)).float() * module.scaling
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1)
