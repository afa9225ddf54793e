import numpy as np
import pytest
import torch
from helpers import fresh_backbone, hf_inputs, picture, processor, prompts, tiny_backbone, tiny_drafter
from transformers import LogitsProcessorList, MaxTimeCriteria, StoppingCriteriaList
from transformers.generation import InfNanRemoveLogitsProcessor

from tiger.backbones.base import Prompt
from tiger.backbones.videos import Video
from tiger.decoding.custom_generate import speculative_generate
from tiger.drafting.routed import RoutedDrafter

BATCH = prompts(5)
OURS = {"custom_generate": speculative_generate, "block_size": 4}


@pytest.fixture(scope="module")
def model():
    return tiny_backbone().model


def batched(requests):
    """Left-padded inputs of several prompts, as users make them."""
    messages = [
        [
            {
                "role": "user",
                "content": [
                    *({"type": "image", "image": i} for i in p.images),
                    {"type": "text", "text": p.text},
                ],
            }
        ]
        for p in requests
    ]
    return processor().apply_chat_template(
        messages,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs={"padding": True},
    )


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_prompt_equals_plain_generate(model, index):
    inputs = hf_inputs(BATCH[index])
    plain = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    ours = model.generate(**inputs, max_new_tokens=12, do_sample=False, **OURS, drafter=tiny_drafter())
    assert torch.equal(ours, plain)


def test_a_padded_batch_equals_plain_generate(model):
    inputs = batched(BATCH)
    assert (inputs["attention_mask"] == 0).any()
    options = {"max_new_tokens": 12, "do_sample": False}
    free = model.generate(**inputs, **options, eos_token_id=None)
    length = inputs["input_ids"].shape[1]
    eos = [int(free[0, length + 3]), int(free[1, length + 5])]  # rows end at different places
    plain = model.generate(**inputs, **options, eos_token_id=eos, pad_token_id=0)
    records = []
    ours = model.generate(
        **inputs, **options, eos_token_id=eos, pad_token_id=0, **OURS, drafter=tiny_drafter(), records=records
    )
    assert torch.equal(ours, plain)
    assert len({len(answer.tokens) for answer in records}) > 1
    assert sum(len(answer.rounds) for answer in records) > 5


def test_videos_reach_both_models(model):
    frames = np.stack([np.asarray(picture(seed).resize((48, 48))) for seed in range(4)])
    inputs = hf_inputs(Prompt("What happens?", (picture(),), videos=(Video(frames, 2.0),)))
    assert "pixel_values_videos" in inputs
    plain = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    ours = model.generate(**inputs, max_new_tokens=12, do_sample=False, **OURS, drafter=tiny_drafter())
    assert torch.equal(ours, plain)


def test_sampling_options_reach_the_decoder(model):
    inputs, drafter = hf_inputs(BATCH[0]), RoutedDrafter(tiny_backbone(), "full", "inline")
    options = {"max_new_tokens": 8, "do_sample": True, "drafter": drafter, **OURS}
    first = model.generate(**inputs, **options, temperature=1.5, top_k=0, seed=1)
    assert torch.equal(model.generate(**inputs, **options, temperature=1.5, top_k=0, seed=1), first)
    assert not torch.equal(model.generate(**inputs, **options, temperature=1.5, top_k=0, seed=2), first)
    torch.manual_seed(5)
    drawn = model.generate(**inputs, **options, temperature=1.5, top_k=0)
    torch.manual_seed(5)
    assert torch.equal(model.generate(**inputs, **options, temperature=1.5, top_k=0), drawn)
    greedy = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    for narrow in ({"top_k": 1}, {"top_p": 1e-6, "top_k": 0}, {"temperature": 1e-4, "top_k": 0}):
        assert torch.equal(model.generate(**inputs, **options, **narrow), greedy)


def test_a_listener_gets_every_round(model):
    inputs, seen = batched(BATCH), [[] for _ in BATCH]
    ours = model.generate(
        **inputs,
        max_new_tokens=12,
        do_sample=False,
        drafter=RoutedDrafter(tiny_backbone(), "full", "inline"),
        listener=lambda row, tokens: seen[row].append(tokens),
        **OURS,
    )
    for row, parts in enumerate(seen):
        tokens = [token for part in parts for token in part]
        assert tokens == ours[row, inputs["input_ids"].shape[1] :][: len(tokens)].tolist()
        assert [len(part) for part in parts] == [1, 5, 5, 1]  # whole blocks at once


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"repetition_penalty": 1.1}, "RepetitionPenaltyLogitsProcessor"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
        ({"min_new_tokens": 3, "eos_token_id": 1}, "MinLengthLogitsProcessor"),
        ({"do_sample": True, "min_p": 0.1}, "MinPLogitsWarper"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences is 2"),
        ({"return_dict_in_generate": True, "output_scores": True}, "return_dict_in_generate, output_scores"),
        ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
        ({"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(9.0)])}, "MaxTimeCriteria"),
        (
            {"logits_processor": LogitsProcessorList([InfNanRemoveLogitsProcessor()])},
            "InfNanRemoveLogitsProcessor",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_honoured_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.generate(**hf_inputs(BATCH[2]), max_new_tokens=4, **OURS, drafter=tiny_drafter(), **options)


def test_embedded_images_are_refused(model):
    inputs = hf_inputs(BATCH[0])
    pixels, grids = inputs.pop("pixel_values"), inputs.pop("image_grid_thw")
    with torch.no_grad():
        encoded = {"image": model.get_image_features(pixels, grids)}
    with pytest.raises(ValueError, match=r"Embedded inputs \(image\)"):
        model.generate(**inputs, mm_encoder_outputs=encoded, max_new_tokens=4, **OURS, drafter=tiny_drafter())


@pytest.mark.parametrize(("name", "value"), [("patch_size", 16), ("spatial_merge_size", 4)])
def test_a_drafter_that_reads_images_differently_is_refused(model, name, value):
    other = fresh_backbone("drafter", 1, 1)
    setattr(other.model.config.vision_config, name, value)
    with pytest.raises(ValueError, match=f"{name} is .* in the verifier and {value} in the drafter"):
        model.generate(**hf_inputs(BATCH[0]), max_new_tokens=4, **OURS, drafter=RoutedDrafter(other))
