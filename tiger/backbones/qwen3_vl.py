"""Qwen3-VL: transformers' own classes behind the interface that the rest of TIGER uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from tiger.backbones.base import Assembled, ModelInputs, Prompt, VisualBank
from tiger.backbones.cache import BlockCache


class Qwen3VLBackbone(nn.Module):
    """A Qwen3-VL model with explicit positions, masks and caches.

    Args:
        model: The loaded model.
        processor: Its processor.
    """

    num_axes = 3

    def __init__(self, model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor) -> None:
        super().__init__()
        self.model = model
        self.processor = processor

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.processor.tokenizer

    @property
    def hidden_size(self) -> int:
        """Width D of the language model."""
        return int(self.model.config.text_config.hidden_size)

    @property
    def num_layers(self) -> int:
        """Layers of the language model."""
        return int(self.model.config.text_config.num_hidden_layers)

    @property
    def vocab_size(self) -> int:
        """Size V of the output vocabulary."""
        return int(self.model.config.text_config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Context limit, tokens."""
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.model.language_model.embed_tokens.weight.device

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        eos = self.model.generation_config.eos_token_id or self.model.config.text_config.eos_token_id
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)

    def prepare(self, prompt: Prompt) -> ModelInputs:
        """Applies the chat template and the image processor.

        Raises:
            ValueError: If the prompt is longer than the context.
        """
        if prompt.prepared is not None:
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
        if batch["input_ids"].shape[1] >= self.max_positions:
            raise ValueError(
                f"The prompt {prompt.id!r} has {batch['input_ids'].shape[1]} tokens, the context holds "
                f"{self.max_positions}. Shorten the text, or lower the processor's largest image size."
            )
        position_ids, _ = self.model.model.get_rope_index(
            batch["input_ids"],
            mm_token_type_ids=batch["mm_token_type_ids"],
            image_grid_thw=batch.get("image_grid_thw"),
            attention_mask=batch["attention_mask"],
        )
        ids = batch["input_ids"][0].to(self.device)
        pixels = {k: batch[k].to(self.device) for k in ("pixel_values", "image_grid_thw") if k in batch}
        visual = ids == self.model.config.image_token_id
        return ModelInputs(ids, position_ids[:, 0].to(self.device), visual, pixels)

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

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.model.model.language_model.embed_tokens.weight.dtype

    def _empty_bank(self) -> VisualBank:
        empty = torch.zeros(0, self.hidden_size, dtype=self.dtype, device=self.device)
        layers = len(self.model.config.vision_config.deepstack_visual_indexes)
        positions = torch.zeros(self.num_axes, 0, dtype=torch.long, device=self.device)
        return VisualBank(empty, positions, (empty,) * layers)

    def embed(self, ids: Tensor) -> Tensor:
        """Text embeddings [..., D] of token ids [...]."""
        embeddings: Tensor = self.model.model.language_model.embed_tokens(ids)
        return embeddings

    def new_cache(self, batch_size: int, capacity: int) -> BlockCache:
        """An empty cache for this model."""
        return BlockCache(self.num_layers, batch_size, capacity, self.device)

    def run(
        self,
        embeddings: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        cache: Any = None,
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
            attention_mask=mask,
            cache=cache,
            use_cache=cache is not None,
            visual_pos_masks=visual if deepstack else None,
            deepstack_visual_embeds=list(deepstack) or None,
        ).last_hidden_state
        return hidden

    def run_assembled(self, batch: Assembled, cache: Any = None) -> Tensor:
        """Runs an assembled batch from its beginning, causally; hidden states [B, T, D]."""
        length = batch.embeddings.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=batch.embeddings.device).tril()
        mask = causal.expand(batch.embeddings.shape[0], 1, -1, -1)
        return self.run(
            batch.embeddings, batch.position_ids, mask, cache, batch.visual, batch.deepstack
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [..., V] of hidden states [..., D]."""
        logits: Tensor = self.model.lm_head(hidden)
        return logits

    def run_with_attention(self, batch: Assembled, num_layers: int) -> tuple[Tensor, Tensor]:
        """Runs an assembled batch and also returns where its last layers look.

        Attention weights are recomputed from the layers' inputs, so the fused kernel stays in use.

        Args:
            batch: The assembled rows.
            num_layers: Last layers to average over.

        Returns:
            Hidden states [B, T, D] and attention [B, T, T], averaged over heads and layers.
        """
        attention = torch.zeros(())

        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal attention
            attention = attention + self._attention(module, kwargs["hidden_states"], kwargs["position_embeddings"])

        layers = self.model.model.language_model.layers[-num_layers:]
        handles = [layer.self_attn.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
        try:
            hidden = self.run_assembled(batch)
        finally:
            for handle in handles:
                handle.remove()
        return hidden, attention / len(layers)

    @staticmethod
    def _attention(module: Any, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Causal attention weights [B, T, T] of one layer, averaged over heads."""
        shape = (*hidden.shape[:2], -1, module.head_dim)
        query = module.q_norm(module.q_proj(hidden).view(shape)).transpose(1, 2)
        key = module.k_norm(module.k_proj(hidden).view(shape)).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *rope)
        key = key.repeat_interleave(module.num_key_value_groups, dim=1)
        scores = (query @ key.transpose(2, 3)).float() * module.scaling
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(-1).mean(1)
