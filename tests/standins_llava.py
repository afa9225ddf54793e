"""Tiny random LLaVA-NeXT checkpoints: transformers' own classes at toy size, saved to disk."""

from functools import lru_cache

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
)

SIDE = 28
PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
SIZES = {"verifier": (64, 3), "drafter": (48, 2)}  # hidden size, layers
TEXT = {"llama": LlamaConfig, "mistral": MistralConfig}
IMAGES = "{% for c in m['content'] if c['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
WORDS = "{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}"
TEMPLATES = {
    "llama": "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
    + IMAGES
    + WORDS
    + "{{ ' ' }}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "mistral": "{% for m in messages %}{% if m['role'] == 'system' %}"
    + WORDS
    + "{% elif m['role'] == 'user' %}{{ '[INST] ' }}"
    + IMAGES
    + WORDS
    + "{{ ' [/INST]' }}{% else %}"
    + WORDS
    + "{{ '</s>' }}{% endif %}{% endfor %}",
}


@lru_cache
def _tokenizer():
    """256 bytes and the special tokens of Llama; a beginning token opens every text."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<unk>", "<s>", "</s>", "<pad>", "<image>")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
        extra_special_tokens={"image_token": "<image>"},
    )


def llava_next(folder, role, seed, text="llama", patch_size=7):
    """Writes a checkpoint of 4 x 4 (at patch size 14: 2 x 2) visual tokens per tile.

    Args:
        folder: Target.
        role: "verifier" or "drafter", which differ in size.
        seed: Seed of the weights.
        text: Text model, "llama" or "mistral".
        patch_size: Pixels of a visual token.
    """
    torch.manual_seed(seed)
    tokenizer, (hidden, layers) = _tokenizer(), SIZES[role]
    token_id = tokenizer.convert_tokens_to_ids
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=patch_size,
            projection_dim=32,
        ),
        text_config=TEXT[text](
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4 if text == "llama" else 2,
            max_position_embeddings=1024,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.2,
            **({"sliding_window": None} if text == "mistral" else {}),
        ),
        image_token_index=token_id("<image>"),
        image_grid_pinpoints=PINPOINTS,
    )
    model = LlavaNextForConditionalGeneration(config).eval()
    images = LlavaNextImageProcessor(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_grid_pinpoints=PINPOINTS,
    )
    processor = LlavaNextProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATES[text],
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
