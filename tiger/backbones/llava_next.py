"""LLaVA-NeXT: transformers' own classes behind the interface that the rest of TIGER uses.

An image becomes a base tile (the whole picture in a square), then a finer grid made of several tiles, without
their padding, each row of which ends in the same learnt newline token. The bank holds these tokens in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlavaNextForConditionalGeneration, LlavaNextProcessor
from transformers.cache_utils import Cache
from transformers.models.llava_next.modeling_llava_next import (
    get_anyres_image_grid_shape,
    image_size_to_num_patches,
    unpad_image,
)

from tiger.backbones.attention import explicit_mask
from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs
from tiger.backbones.batches import spans
from tiger.backbones.grids import Grid
from tiger.backbones.importance import from_class_token, weigh

TEXT_MODELS = ("llama", "mistral")
ORIGINAL_KEY = "mm_vision_tower"


def check_format(name_or_path: str, config: Mapping[str, Any]) -> None:
    """Checks that a checkpoint is not in the format of LLaVA's own code.

    Args:
        name_or_path: Where the model is.
        config: What its config.json holds.

    Raises:
        ValueError: If it is; naming the conversion to use.
    """
    if ORIGINAL_KEY in config:
        name = name_or_path.rstrip("/").rpartition("/")[2].lower()
        known = name.startswith("llava-v1.6-")
        conversion = f"llava-hf/{name.removesuffix('-hf')}-hf" if known else "llava-hf/llava-v1.6-*-hf"
        raise ValueError(
            f"{name_or_path} is in the original format of LLaVA (model type {config.get('model_type')!r}, no "
            f"processor files), which transformers does not load. Use its conversion, {conversion}."
        )


class LlavaNextBackbone(Backbone):
    """LLaVA-NeXT with a Llama (Vicuna) or Mistral text model: one position axis, no deepstack rows.

    Args:
        model: The loaded model.
        processor: Its processor.

    Raises:
        ValueError: If the text model is of another kind, or its attention cannot take explicit masks.
    """

    pixel_names = ("pixel_values", "image_sizes")

    def __init__(self, model: LlavaNextForConditionalGeneration, processor: LlavaNextProcessor) -> None:
        super().__init__(model, processor)
        config = self.text_config
        if config.model_type not in TEXT_MODELS:
            raise ValueError(
                f"The text model is a {config.model_type!r}; LLaVA-NeXT is supported with "
                f"{' or '.join(TEXT_MODELS)}."
            )
        window = getattr(config, "sliding_window", None)
        if window is not None:
            # A mask that is given explicitly is used as it is, so the window would silently not apply.
            raise ValueError(
                f"The text model attends to the last {window} tokens only, which explicit masks and routed "
                "tokens at their original positions do not express. Set sliding_window to null in the "
                f"text_config of config.json; up to {window} tokens the output is the same."
            )

    def unbatch(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **pixels: Tensor | None
    ) -> list[ModelInputs]:
        """Splits a batch made by the processor into requests, without their padding.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: Mask [B, T], 0 at padding.
            pixels: `pixel_values` [images, tiles, channels, side, side], padded to the same number of tiles,
                and `image_sizes` [images, 2] (height, width) of the whole batch.

        Raises:
            ValueError: If image tensors and image tokens do not match.
        """
        values, sizes = pixels.get("pixel_values"), pixels.get("image_sizes")
        if (values is None) != (sizes is None):
            raise ValueError("pixel_values and image_sizes belong together; pass both or neither.")
        grids = [] if sizes is None else [self._grids(size) for size in sizes.tolist()]
        kept = [
            ids if attention_mask is None else ids[attention_mask[row].bool()]
            for row, ids in enumerate(input_ids)
        ]
        visual = [ids == self.model.config.image_token_id for ids in kept]
        owned = spans([int(row.sum()) for row in visual], [sum(g.size for g in pair) for pair in grids])
        rows = []
        for ids, shown, images in zip(kept, visual, owned, strict=True):
            tensors = {}
            if values is not None and sizes is not None and images.start < images.stop:
                tensors = {"pixel_values": self._tiles(values[images], sizes[images])}
                tensors["image_sizes"] = sizes[images].to(self.device)
            rows.append(
                ModelInputs(
                    ids.to(self.device),
                    torch.arange(len(ids), device=self.device)[None],
                    shown.to(self.device),
                    tensors,
                )
            )
        return rows

    def _tiles(self, values: Tensor, sizes: Tensor) -> Tensor:
        """Tiles [tiles of all images, channels, side, side] without the padding to a common number."""
        counts = self._tile_counts(sizes)
        if max(counts) > values.shape[1]:
            raise ValueError(
                f"An image needs {max(counts)} tiles, the processor made {values.shape[1]}: its "
                "image_grid_pinpoints are not those of the model. Use the processor files of the model's own "
                "repository."
            )
        return torch.cat([image[:n] for image, n in zip(values, counts, strict=True)]).to(self.device)

    def _tile_counts(self, sizes: Tensor) -> list[int]:
        """Tiles of each image of sizes [images, 2] (height, width)."""
        config = self.model.config
        return [
            image_size_to_num_patches(size, config.image_grid_pinpoints, config.vision_config.image_size)
            for size in sizes.tolist()
        ]

    def _grids(self, size: list[int]) -> tuple[Grid, Grid]:
        """Base tile and unpadded grid of an image of (height, width)."""
        vision = self.model.config.vision_config
        side = vision.image_size // vision.patch_size
        high, wide = get_anyres_image_grid_shape(
            size, self.model.config.image_grid_pinpoints, vision.image_size
        )
        # The model's own unpadding, on a tensor without data, so that rounding cannot differ.
        whole = torch.empty(1, high * side, wide * side, device="meta")
        rows, columns = unpad_image(whole, size).shape[1:]
        return Grid(1, side, side), Grid(1, rows, columns, newlines=True, again=True)

    @property
    def _last_layer(self) -> int:
        """Index of the last layer of the tower that bank tokens are made of, -1 for none."""
        chosen = self.model.config.vision_feature_layer
        # States are numbered from the embeddings on, so state n is what layer n - 1 makes.
        states = [chosen] if isinstance(chosen, int) else chosen
        count = len(self.model.model.vision_tower.encoder.layers) + 1
        return int(max(state % count for state in states)) - 1

    def unused_parameters(self) -> list[nn.Parameter]:
        """Weights of the tower behind the last layer that bank tokens are made of."""
        tower = self.model.model.vision_tower
        modules = [*tower.encoder.layers[self._last_layer + 1 :], tower.post_layernorm]
        return [parameter for module in modules for parameter in module.parameters()]

    def encode(self, inputs: Sequence[ModelInputs], use_importance: bool = False) -> list[VisualBank]:
        """Encodes images, see `Backbone.encode`."""
        features: list[Tensor] = []
        weights: list[Tensor] = []
        if shown := [entry.pixels for entry in inputs if entry.pixels]:
            values = torch.cat([pixels["pixel_values"] for pixels in shown]).to(self.dtype)
            sizes = torch.cat([pixels["image_sizes"] for pixels in shown])
            if use_importance:
                features, weights = self._weigh(values, sizes)
            else:
                features = self.model.get_image_features(values, sizes).pooler_output
        banks, image = [], 0
        none = torch.zeros(0, self.hidden_size, dtype=self.dtype, device=self.device)
        for entry in inputs:
            shapes = entry.pixels["image_sizes"].tolist() if entry.pixels else []
            own = slice(image, image + len(shapes))
            image = own.stop
            tokens = torch.cat([none, *features[own]])
            grids = tuple(grid for size in shapes for grid in self._grids(size))
            importance = torch.cat([none.new_zeros(0).float(), *weights[own]]) if use_importance else None
            banks.append(VisualBank(tokens, entry.position_ids[:, entry.visual], (), grids, importance))
        return banks

    def _weigh(self, values: Tensor, sizes: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens and their importance, by image: the class token's attention in the layer they come from."""
        tower = self.model.model.vision_tower
        attention = tower.encoder.layers[max(self._last_layer, 0)].self_attn
        output, tiles = weigh(
            attention, from_class_token, lambda: self.model.get_image_features(values, sizes)
        )
        # Packed as the tokens are, so that each stays beside its own.
        packed, _ = self.model.pack_image_features(
            tiles[..., None].split(self._tile_counts(sizes)),
            sizes,
            "default",
            image_newline=tiles.new_zeros(1),
        )
        return output.pooler_output, [image[:, 0] for image in packed]

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
            position_ids: [1, B, T].
            mask: [B, 1, T, past + T], bool (True: attend) or an additive bias; None attends to everything.
            cache: Cache to read and extend.
            visual: Not needed by this family.
            deepstack: Not needed by this family.

        Returns:
            Hidden states [B, T, D] after the final norm.
        """
        hidden: Tensor = self.model.get_decoder()(
            inputs_embeds=embeddings,
            position_ids=position_ids[0],
            attention_mask=explicit_mask(mask, self.text_config._attn_implementation, embeddings.dtype),
            cache=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return hidden
