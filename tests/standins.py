"""Tiny random checkpoints of every family: transformers' own classes, toy sizes, a tokenizer of bytes.

Verifier and drafter of a family share the tokenizer and differ in everything that may differ: widths, layers,
vision tower, visual tokens per image, padding of the vocabulary.
"""

from functools import partial

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from tiger.pairs.recipe.architecture import CHAT_TEMPLATE, SPECIAL_TOKENS

# By role: width, layers, patch size, padding of the vocabulary.
ROLES = {
    "verifier": {"hidden": 64, "layers": 3, "patch": 8, "padding": 57},
    "drafter": {"hidden": 32, "layers": 2, "patch": 12, "padding": 9},
}


def byte_tokenizer(special, **options):
    """A tokenizer of 256 bytes and special tokens."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **options)


def _qwen_config(config_class, tokenizer, role, text, vision):
    """A configuration; heads are 16 wide, so each half of a head is split into axes of 4, 2 and 2."""
    size, token_id = ROLES[role], tokenizer.convert_tokens_to_ids
    heads = size["hidden"] // 16
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    return config_class(
        text_config={
            "vocab_size": len(tokenizer) + size["padding"],
            "hidden_size": size["hidden"],
            "intermediate_size": 2 * size["hidden"],
            "num_hidden_layers": size["layers"],
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": 2048,
            "initializer_range": 0.08,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
            "rope_parameters": rope | text.pop("rope", {}),
            **text,
        },
        vision_config={
            "depth": 2,
            "hidden_size": size["hidden"] // 2,
            "intermediate_size": size["hidden"],
            "num_heads": 2,
            "patch_size": size["patch"],
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": size["hidden"],
            "initializer_range": 0.08,
            **vision,
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=role == "drafter",
    )


def _qwen_processor(processor_class, video_class, tokenizer, role, frame_budget):
    """Processors that keep an image at 16 visual tokens or fewer, whatever its size."""
    side = 2 * ROLES[role]["patch"]
    shape = {"patch_size": ROLES[role]["patch"], "temporal_patch_size": 2, "merge_size": 2}
    sizes = {"shortest_edge": side * side, "longest_edge": side * side * 16}
    budget = {"shortest_edge": side * side, "longest_edge": side * side * frame_budget}
    return processor_class(
        image_processor=Qwen2VLImageProcessor(size=sizes, **shape),
        tokenizer=tokenizer,
        video_processor=video_class(size=budget, cap_pixels_per_frame=False, **shape),
        chat_template=CHAT_TEMPLATE,
    )


def _qwen_tokenizer():
    names = ("image", "video", "vision_start", "vision_end")
    tokens = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return byte_tokenizer(
        SPECIAL_TOKENS,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens={f"{name}_token": token for name, token in zip(names, tokens, strict=True)},
    )


def qwen3_vl(role):
    """Qwen3-VL; the verifier has deepstack rows for its first two layers, the drafter for its first."""
    tokenizer = _qwen_tokenizer()
    vision = {
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1] if role == "verifier" else [0],
    }
    text = {"head_dim": 16, "rope": {"mrope_interleaved": True}}
    config = _qwen_config(Qwen3VLConfig, tokenizer, role, text, vision)
    # Its video processor shares the budget between the frames.
    processor = _qwen_processor(Qwen3VLProcessor, Qwen3VLVideoProcessor, tokenizer, role, 48)
    return Qwen3VLForConditionalGeneration(config), processor


def qwen2_5_vl(role):
    """Qwen2.5-VL; one vision layer attends within windows, one everywhere."""
    tokenizer = _qwen_tokenizer()
    window = 4 * ROLES[role]["patch"]
    vision = {"window_size": window, "fullatt_block_indexes": [1], "tokens_per_second": 2}
    config = _qwen_config(Qwen2_5_VLConfig, tokenizer, role, {"use_sliding_window": False}, vision)
    processor = _qwen_processor(Qwen2_5_VLProcessor, Qwen2VLVideoProcessor, tokenizer, role, 8)
    return Qwen2_5_VLForConditionalGeneration(config), processor


SIDE = 24
PINPOINTS = [[SIDE * rows, SIDE * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]
IMAGES = "{% for c in m['content'] if c['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
WORDS = "{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}"
LLAVA_TEXT = {
    "llama": (
        LlamaConfig,
        "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
        + f"{IMAGES}{WORDS}{{{{ ' ' }}}}{{% endfor %}}"
        + "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    ),
    "mistral": (
        MistralConfig,
        "{% for m in messages %}{{ '' if m['role'] == 'system' else '[INST] ' }}"
        + f"{IMAGES}{WORDS}{{{{ '' if m['role'] == 'system' else ' [/INST]' }}}}{{% endfor %}}",
    ),
}


def _llava_tokenizer():
    """As Llama's, it opens every text with a beginning token."""
    tokenizer = byte_tokenizer(
        ("<unk>", "<s>", "</s>", "<pad>", "<image>"),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    return tokenizer


def llava_next(role, text="llama"):
    """LLaVA-NeXT with a Llama or Mistral text model; 3 x 3 visual tokens a tile, in the drafter 2 x 2."""
    tokenizer, size, (text_class, template) = _llava_tokenizer(), ROLES[role], LLAVA_TEXT[text]
    heads = size["hidden"] // 16
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=size["hidden"] // 2,
            intermediate_size=size["hidden"],
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=size["patch"],
            projection_dim=16,
        ),
        text_config=text_class(
            vocab_size=len(tokenizer) + size["padding"],
            hidden_size=size["hidden"],
            intermediate_size=2 * size["hidden"],
            num_hidden_layers=size["layers"],
            num_attention_heads=heads,
            num_key_value_heads=heads if text == "llama" else heads // 2,
            max_position_embeddings=2048,
            initializer_range=0.08,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **({"sliding_window": None} if text == "mistral" else {}),
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=PINPOINTS,
    )
    images = LlavaNextImageProcessor(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_grid_pinpoints=PINPOINTS,
    )
    processor = LlavaNextProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=size["patch"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )
    return LlavaNextForConditionalGeneration(config), processor


FAMILIES = {
    "qwen3_vl": qwen3_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "llava_next": llava_next,
    "llava_next_mistral": partial(llava_next, text="mistral"),
}


def save_standin(family, folder, role="verifier", seed=0):
    """Writes a tiny random checkpoint that `load_backbone` and `load_drafter` read.

    Args:
        family: A key of `FAMILIES`.
        folder: Target folder, made if missing.
        role: "verifier" or "drafter".
        seed: Seed of the weights.

    Returns:
        The folder as text.
    """
    torch.manual_seed(seed)
    model, processor = FAMILIES[family](role)
    with torch.no_grad():  # larger weights, so that random models do not repeat one token
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
