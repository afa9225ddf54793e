"""Sizes of the tiny pair, its tokenizer and its processor.

Both models are transformers' own Qwen3-VL classes at toy size, so everything that runs on the tiny pair
runs on a hub model of that family.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from data_modules.synthetic.world import IMAGE_SIZE, generate

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif c['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PATCH_SIZE = 8
MERGE_SIZE = 2
VOCAB_SIZE = 1024
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "verifier": {
        "text": {
            "hidden_size": 192,
            "intermediate_size": 576,
            "num_hidden_layers": 16,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
        },
        "vision": {
            "depth": 4,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_heads": 4,
            "deepstack_visual_indexes": [1],
        },
    },
    "drafter": {
        "text": {
            "hidden_size": 128,
            "intermediate_size": 320,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        "vision": {
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_heads": 3,
            "deepstack_visual_indexes": [],
        },
    },
}


def build_tokenizer(num_samples: int = 6000) -> PreTrainedTokenizerFast:
    """Trains the shared byte-level BPE tokenizer on synthetic questions and answers.

    Capitals and digits in a row are never merged, so a code such as "K7X9" stays one token a character.

    Args:
        num_samples: Training samples whose text is read.
    """
    text = [f"{turn.question}\n{turn.answer}" for seed in range(num_samples) for turn in generate(seed).turns]
    tokenizer = Tokenizer(models.BPE())
    single = pre_tokenizers.Split(Regex(r"\d|[A-Z](?![a-z])"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [single, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>",
            "vision_end_token": "<|vision_end|>",
        },
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    """Wraps the tokenizer with image and video processors that keep an image at 64 visual tokens or fewer."""
    pixels = IMAGE_SIZE * IMAGE_SIZE
    shape = {"patch_size": PATCH_SIZE, "temporal_patch_size": 2, "merge_size": MERGE_SIZE}
    image = Qwen2VLImageProcessor(size={"shortest_edge": pixels // 4, "longest_edge": pixels}, **shape)
    video = Qwen3VLVideoProcessor(size={"shortest_edge": pixels // 4, "longest_edge": pixels * 8}, **shape)
    return Qwen3VLProcessor(
        image_processor=image, tokenizer=tokenizer, video_processor=video, chat_template=CHAT_TEMPLATE
    )


def build_model(
    role: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0
) -> Qwen3VLForConditionalGeneration:
    """Builds a randomly initialised model.

    Args:
        role: "verifier" or "drafter".
        tokenizer: The shared tokenizer.
        seed: Seed of the initial weights.
    """
    torch.manual_seed(seed)
    text, vision = SIZES[role]["text"], SIZES[role]["vision"]
    token_id = tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "head_dim": 32,
            "max_position_embeddings": 1024,
            "initializer_range": 0.04,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [8, 4, 4],
                "mrope_interleaved": True,
            },
            **text,
        },
        vision_config={
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 2,
            "out_hidden_size": text["hidden_size"],
            "num_position_embeddings": (IMAGE_SIZE // PATCH_SIZE) ** 2,
            "initializer_range": 0.04,
            **vision,
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    return Qwen3VLForConditionalGeneration(config)
