"""Verifiers in 4 and 8 bits: what bitsandbytes, which is optional, is asked for."""

import importlib.metadata
import importlib.util

import pytest
import torch
from helpers import save_backbone, tiny_backbone
from standins import FAMILIES
from transformers import Qwen3VLForConditionalGeneration
from transformers.quantizers.quantizers_utils import should_convert_module

from tiger.backbones.loading import UNQUANTIZED, load_backbone


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("verifier")
    save_backbone(tiny_backbone(), target)
    return str(target)


@pytest.fixture
def asked(monkeypatch):
    """The quantization configs that transformers is given, as if bitsandbytes were there."""
    find, version, configs = importlib.util.find_spec, importlib.metadata.version, []
    load = Qwen3VLForConditionalGeneration.from_pretrained
    present = {"bitsandbytes": "0.46.1"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: name in present or find(name, *a))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: present.get(name) or version(name))

    def record(path, quantization_config=None, **options):
        configs.append(quantization_config)
        return load(path, **options)

    monkeypatch.setattr(Qwen3VLForConditionalGeneration, "from_pretrained", record)
    return configs


def test_four_bits(folder, asked):
    load_backbone(folder, "bfloat16", quantization="4bit")
    (config,) = asked
    assert config.load_in_4bit
    assert not config.load_in_8bit
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == ("nf4", True)
    assert config.bnb_4bit_compute_dtype == torch.bfloat16


def test_eight_bits(folder, asked):
    load_backbone(folder, quantization="8bit")
    (config,) = asked
    assert config.load_in_8bit
    assert not config.load_in_4bit


def test_no_quantization_asks_for_none(folder, asked):
    load_backbone(folder)
    assert asked == [None]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_language_model_is_quantized(family):
    model, _ = FAMILIES[family]("verifier")
    linear = {name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    converted = {name for name in linear if should_convert_module(name, UNQUANTIZED)}
    assert converted == {name for name in linear if name.startswith("model.language_model.")}


def test_absent_bitsandbytes_and_unknown_names(folder, monkeypatch):
    find = importlib.util.find_spec
    absent = lambda name, *a: None if name == "bitsandbytes" else find(name, *a)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    with pytest.raises(ValueError, match=r"4bit needs bitsandbytes.*pip install 'tiger-vlm\[quantization\]'"):
        load_backbone(folder, quantization="4bit")
    with pytest.raises(ValueError, match="Unknown quantization '3bit'; choose 4bit, 8bit or null"):
        load_backbone(folder, quantization="3bit")
