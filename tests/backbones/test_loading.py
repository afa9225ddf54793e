import copy
import json
import re

import numpy as np
import pytest
import torch
from helpers import fresh_backbone, hf_inputs, picture, prompts, save_backbone, tiny_backbone
from PIL import Image

from data_modules.sources.record import Picture
from tiger.backbones.base import Prompt
from tiger.backbones.images import load_image
from tiger.backbones.loading import check_pair, load_backbone
from tiger.backbones.qwen3_vl import Qwen3VLBackbone
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.routed import RoutedDrafter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("verifier")
    save_backbone(tiny_backbone(), target)
    return target


def test_a_saved_folder_gives_the_same_logits(folder):
    backbone, prompt = load_backbone(str(folder)), prompts(1)[0]
    assert not backbone.training
    assert backbone.dtype == torch.float32
    with torch.no_grad():
        expected = tiny_backbone().model(**hf_inputs(prompt)).logits
        assert torch.equal(backbone.model(**hf_inputs(prompt)).logits, expected)
    assert backbone.eos_ids == tiny_backbone().eos_ids
    assert torch.equal(backbone.prepare(prompt).ids, tiny_backbone().prepare(prompt).ids)


def test_dtype_is_what_was_asked_for(folder):
    assert load_backbone(str(folder), dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(ValueError, match="Unknown dtype 'half'"):
        load_backbone(str(folder), dtype="half")


def test_missing_folder_and_missing_config(tmp_path):
    for name in (str(tmp_path / "nothing"), "./nothing", "tiny/nothing"):
        with pytest.raises(FileNotFoundError, match="There is no folder"):
            load_backbone(name)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_backbone(str(tmp_path))


def test_unsupported_family(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match=r"'bert' model; supported families: .*qwen3_vl"):
        load_backbone(str(tmp_path))


def test_pairs_share_one_tokenizer():
    verifier, drafter = tiny_backbone(), fresh_backbone("drafter", 1, 1)
    check_pair(verifier, drafter)
    drafter.processor = copy.copy(drafter.processor)
    drafter.processor.tokenizer = copy.deepcopy(drafter.processor.tokenizer)
    check_pair(verifier, drafter)
    drafter.processor.tokenizer.add_tokens(["<new>"])
    first = len(verifier.tokenizer)
    with pytest.raises(ValueError, match=f"difference is id {first}: None in the verifier, '<new>' in the"):
        check_pair(verifier, drafter)
    with pytest.raises(ValueError, match="share one tokenizer"):
        SpeculativeDecoder(verifier, RoutedDrafter(drafter))


def test_a_model_that_scores_too_few_ids_is_refused():
    verifier = tiny_backbone()
    drafter = fresh_backbone("drafter", 1, 1)
    drafter.model.config.text_config.vocab_size -= 3
    short = Qwen3VLBackbone(drafter.model, drafter.processor)
    missing = len(verifier.tokenizer) - 3
    with pytest.raises(ValueError, match=f"the drafter {missing}; id {missing} is missing"):
        check_pair(verifier, short)


def test_model_and_processor_agree_on_the_image_token():
    backbone = fresh_backbone(layers=1)
    backbone.model.config.image_token_id += 1
    with pytest.raises(ValueError, match=r"marks images with token 5, the model looks for token 6"):
        Qwen3VLBackbone(backbone.model, backbone.processor)


def test_prompts_are_prepared_once_for_models_that_read_alike():
    verifier, drafter = tiny_backbone(), fresh_backbone("drafter", 1, 2)
    assert SpeculativeDecoder(verifier, RoutedDrafter(drafter)).shares_inputs
    calls, prepare = [], drafter.prepare
    drafter.prepare = lambda prompt: calls.append(prompt.prepared) or prepare(prompt)
    SpeculativeDecoder(verifier, RoutedDrafter(drafter), 2, 3).generate(prompts(2))
    assert len(calls) == 2
    assert None not in calls
    drafter.processor = copy.deepcopy(drafter.processor)
    drafter.processor.image_processor.image_mean = [0.1, 0.2, 0.3]
    assert not SpeculativeDecoder(verifier, RoutedDrafter(drafter)).shares_inputs
    drafter.processor = copy.deepcopy(verifier.processor)
    drafter.processor.video_processor.max_frames = 3
    assert not SpeculativeDecoder(verifier, RoutedDrafter(drafter)).shares_inputs


def test_images_are_read_in_rgb(tmp_path):
    picture().convert("RGBA").save(tmp_path / "a.png")
    image = load_image(tmp_path / "a.png")
    assert image.mode == "RGB"
    assert image.tobytes() == picture().tobytes()


def test_images_are_turned_as_their_exif_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    plain = Image.new("RGB", (40, 20), "red")
    plain.paste("blue", (0, 0, 20, 20))
    plain.save(tmp_path / "turned.png", exif=exif)
    image, encoded = load_image(tmp_path / "turned.png"), Picture(tmp_path / "turned.png")
    assert image.size == encoded.size == encoded.decode().size == (20, 40)
    assert image.getpixel((10, 5)) == (0, 0, 255)
    assert image.getpixel((10, 35)) == (255, 0, 0)


def test_greys_of_16_bits_keep_their_shades(tmp_path):
    ramp = np.linspace(0, 65535, 64 * 4).astype(np.uint16).reshape(4, 64)
    Image.fromarray(ramp).save(tmp_path / "grey.png")
    found = np.asarray(load_image(tmp_path / "grey.png"))[..., 0]
    np.testing.assert_allclose(found, ramp / 257, atol=1)


@pytest.mark.parametrize("mark", ["<|image_pad|>", "<|video_pad|>"])
def test_marks_of_visual_tokens_in_a_question_are_named(mark):
    with pytest.raises(ValueError, match=rf"prompt 'q7' holds {re.escape(mark)}"):
        tiny_backbone().prepare(Prompt(f"What is {mark}?", (picture(),), id="q7"))


def test_missing_image(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no image file .*gone\.png"):
        load_image(tmp_path / "gone.png")


def test_unreadable_images(tmp_path):
    (tmp_path / "text.png").write_text("no image")
    picture().save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:300])
    for name in ("text.png", "cut.png"):
        with pytest.raises(ValueError, match=f"{name}.*cannot be read as an image"):
            load_image(tmp_path / name)
