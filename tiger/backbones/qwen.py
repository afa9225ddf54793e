"""What the Qwen families share: images and videos in one batch of patches, grids, three position axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.vision_utils import get_vision_window_index

from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Backbone, ModelInputs
from tiger.backbones.batches import spans
from tiger.backbones.grids import Grid
from tiger.backbones.importance import received, weigh

# Kind of visual input, its patches and its grids.
KINDS = (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw"))
SECONDS = "second_per_grid_ts"
PIXEL_NAMES = (*(name for _, *names in KINDS for name in names), SECONDS)


def unbatch(
    backbone: Backbone,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    pixels: Mapping[str, Tensor | None],
) -> list[ModelInputs]:
    """Splits a batch made by the processor into requests, see `Backbone.unbatch`."""
    config = backbone.model.config
    merged = config.vision_config.spatial_merge_size**2
    texts = [
        ids if attention_mask is None else ids[attention_mask[row].bool()]
        for row, ids in enumerate(input_ids)
    ]
    owned: list[dict[str, Tensor]] = [{} for _ in texts]
    for kind, values_name, grids_name in KINDS:
        values, grids, seconds = pixels.get(values_name), pixels.get(grids_name), pixels.get(SECONDS)
        patches = [] if grids is None else grids.prod(-1).tolist()
        token = getattr(config, f"{kind}_token_id")
        counts = [int((ids == token).sum()) for ids in texts]
        owners = spans(counts, [size // merged for size in patches], kind)
        if values is None or grids is None:
            continue
        pieces = values.split(patches)
        for row, span in zip(owned, owners, strict=True):
            if span.start < span.stop:
                row |= {values_name: torch.cat(pieces[span]), grids_name: grids[span]}
                if kind == "video" and seconds is not None:
                    row[SECONDS] = torch.as_tensor(seconds)[span]
    return [_inputs(backbone, ids, row) for ids, row in zip(texts, owned, strict=True)]


def _inputs(backbone: Backbone, ids: Tensor, pixels: dict[str, Tensor]) -> ModelInputs:
    """One request; its explicit positions leave the model object's own position state untouched."""
    config = backbone.model.config
    is_image, is_video = ids == config.image_token_id, ids == config.video_token_id
    positions, _ = backbone.model.model.get_rope_index(
        ids[None],
        mm_token_type_ids=(is_image + 2 * is_video.int())[None],
        image_grid_thw=pixels.get("image_grid_thw"),
        video_grid_thw=pixels.get("video_grid_thw"),
        second_per_grid_ts=pixels.get(SECONDS),
        attention_mask=torch.ones_like(ids)[None],
    )
    device = backbone.device
    return ModelInputs(
        ids.to(device),
        positions[:, 0].to(device),
        (is_image | is_video).to(device),
        {name: value.to(device) for name, value in pixels.items()},
    )


def encode(
    backbone: Backbone, inputs: Sequence[ModelInputs], use_importance: bool = False
) -> list[VisualBank]:
    """Encodes the images and videos of all requests in one pass, see `Backbone.encode`."""
    config = backbone.model.config
    parts = [
        (entry.pixels[values], entry.pixels[grids])
        for entry in inputs
        for _, values, grids in KINDS
        if values in entry.pixels
    ]
    weights: Tensor | None = None
    if parts:
        patches, grids = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        tower = backbone.model.model.visual
        if use_importance:
            output, weights = _weigh(tower, patches.to(backbone.dtype), grids)
        else:
            output = tower(patches.to(backbone.dtype), grid_thw=grids)
        tokens, deepstack = output.pooler_output, getattr(output, "deepstack_features", None) or ()
    else:
        tokens = torch.zeros(0, backbone.hidden_size, dtype=backbone.dtype, device=backbone.device)
        deepstack = (tokens,) * len(getattr(config.vision_config, "deepstack_visual_indexes", ()))
        weights = tokens.new_zeros(0, dtype=torch.float32) if use_importance else None
    banks, start = [], 0
    for entry in inputs:
        video = entry.ids[entry.visual] == config.video_token_id
        # A request's images were encoded before its videos; in the text they may stand in any order.
        rows = start + video.int().argsort(stable=True).argsort()
        start += len(rows)
        banks.append(
            VisualBank(
                tokens[rows],
                entry.position_ids[:, entry.visual],
                tuple(feature[rows] for feature in deepstack),
                _grids(entry, video.tolist(), config.vision_config.spatial_merge_size),
                None if weights is None else weights[rows],
            )
        )
    return banks


def _weigh(tower: Any, patches: Tensor, grids: Tensor) -> tuple[Any, Tensor]:
    """The output of a vision tower and the importance of its tokens [N].

    That is the attention their patches receive in the last layer that sees whole frames.
    """
    config = tower.config
    window = getattr(config, "window_size", None)
    layer = max(config.fullatt_block_indexes) if window else len(tower.blocks) - 1
    attention = tower.blocks[layer].attn
    output, weights = weigh(attention, received, lambda: tower(patches, grid_thw=grids))
    weights = weights.view(-1, config.spatial_merge_size**2).sum(1)
    if window:  # the layers of Qwen2.5-VL see the tokens window by window
        order, _ = get_vision_window_index(grids, config.spatial_merge_size, window, config.patch_size)
        weights = weights[order.argsort().to(weights.device)]
    return output, weights


def _grids(entry: ModelInputs, video: Sequence[bool], merge: int) -> tuple[Grid, ...]:
    """Grids of a request's images and videos after merging, in token order.

    Args:
        entry: The request.
        video: Whether each visual token belongs to a video.
        merge: Patches per side of a visual token.
    """
    waiting = [iter(entry.pixels[name].tolist() if name in entry.pixels else ()) for _, _, name in KINDS]
    grids: list[Grid] = []
    place = 0
    while place < len(video):
        frames, height, width = next(waiting[video[place]])
        grids.append(Grid(frames, height // merge, width // merge))
        place += grids[-1].size
    return tuple(grids)
