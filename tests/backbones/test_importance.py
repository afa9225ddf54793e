"""The importance of visual tokens, against the weights that eager attention itself computes."""

import numpy as np
import pytest
import torch
from PIL import Image
from standins import FAMILIES, save_standin
from transformers.models.clip import modeling_clip
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl

from tiger.backbones.base import Prompt
from tiger.backbones.grids import newline_tokens
from tiger.backbones.loading import load_backbone
from tiger.backbones.videos import Video

NOISE = np.random.default_rng(0)
MODELING = {
    "qwen3_vl": modeling_qwen3_vl,
    "qwen2_5_vl": modeling_qwen2_5_vl,
    "llava_next": modeling_clip,
}


def noise(*shape):
    return NOISE.integers(0, 256, shape, dtype=np.uint8)


def pictures(*sizes):
    return tuple(Image.fromarray(noise(*size, 3)) for size in sizes)


PROMPTS = [
    Prompt("What is it?", pictures((64, 64))),
    Prompt("Hello."),
    Prompt("Compare.", pictures((40, 150), (97, 64))),
]
VIDEO = Prompt("Now?", pictures((50, 50)), videos=(Video(noise(4, 32, 64, 3), 2.0),))


@pytest.fixture(params=MODELING)
def backbone(request, tmp_path):
    return load_backbone(save_standin(request.param, tmp_path), attention="eager")


def encode_and_watch(backbone, inputs, monkeypatch):
    """Banks, the vision tower's attention weights by call, and what the projector made, one row per token."""
    weights, projected = [], []
    module = MODELING[backbone.model.config.model_type]
    plain = module.eager_attention_forward

    def spy(attention, *args, **kwargs):
        output, found = plain(attention, *args, **kwargs)
        weights.append((attention, found))
        return output, found

    monkeypatch.setattr(module, "eager_attention_forward", spy)
    names = {"visual.merger", "multi_modal_projector"}
    (projector,) = [m for n, m in backbone.model.model.named_modules() if n in names]
    handle = projector.register_forward_hook(lambda *call: projected.append(call[-1].flatten(0, -2)))
    banks = backbone.encode(inputs, use_importance=True)
    handle.remove()
    return banks, weights, projected[0]


@torch.no_grad()
def test_importance_is_the_attention_of_the_layer_that_tokens_come_from(backbone, monkeypatch):
    requests = [*PROMPTS, *([VIDEO] if backbone.reads_video else [])]
    inputs = [backbone.prepare(prompt) for prompt in requests]
    banks, weights, projected = encode_and_watch(backbone, inputs, monkeypatch)
    if backbone.reads_video:  # the last layer sees whole frames; four patches make a token
        last = [found[0].mean((0, 1)) for attention, found in weights if attention is weights[-1][0]]
        expected = torch.cat(last).view(-1, 4).sum(1)
    else:  # tokens come from the layer before the last one
        layer = backbone.model.model.vision_tower.encoder.layers[-2].self_attn
        expected = next(found[:, :, 0, 1:] for a, found in weights if a is layer).mean(1).flatten()
    for bank in banks:
        marks = newline_tokens(bank.grids)
        assert len(marks) == len(bank.importance) == len(bank)
        assert bank.importance.dtype == torch.float32
        for token, weight, mark in zip(bank.tokens, bank.importance, marks, strict=True):
            distance = (projected - token).abs().amax(1)
            assert weight == 0 if mark else torch.isclose(weight, expected[distance.argmin()], atol=1e-6)
            assert mark or distance.min() < 1e-5
    plain = backbone.encode(inputs)
    assert all(bank.importance is None for bank in plain)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, banks, strict=True))


@torch.no_grad()
def test_the_global_token_has_the_mean_importance(backbone):
    (bank,) = backbone.encode([backbone.prepare(PROMPTS[0])], use_importance=True)
    whole = bank.with_global()
    assert torch.equal(whole.importance[:-1], bank.importance)
    assert torch.isclose(whole.importance[-1], bank.importance.mean())


def test_every_family_is_tried():
    assert set(MODELING) == {family.removesuffix("_mistral") for family in FAMILIES}
