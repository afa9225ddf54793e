"""Tiny random models and prompts that every test folder shares."""

import copy
from functools import lru_cache

import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from data_modules.synthetic.world import generate
from tiger.backbones.base import Prompt
from tiger.backbones.qwen3_vl import Qwen3VLBackbone
from tiger.drafting.routed import RoutedDrafter
from tiger.pairs.recipe import architecture


@lru_cache
def processor():
    """Processor of the tiny pair's shape, with a tokenizer trained on little text."""
    return architecture.build_processor(architecture.build_tokenizer(num_samples=60))


@lru_cache
@torch.inference_mode(False)  # or a test in inference mode would leave a model that none could train
def _model(role, seed, layers):
    sizes = copy.deepcopy(architecture.SIZES)
    try:
        architecture.SIZES[role]["text"]["num_hidden_layers"] = layers
        architecture.SIZES[role]["vision"]["depth"] = 2
        model = architecture.build_model(role, processor().tokenizer, seed).eval()
    finally:
        architecture.SIZES.clear()
        architecture.SIZES.update(sizes)
    with torch.no_grad():  # larger weights, so that random models do not repeat one token
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.5)
    return model


def tiny_backbone(role="verifier", seed=0, layers=3):
    """A randomly initialised backbone; the model is shared between calls, so change no weights."""
    return Qwen3VLBackbone(_model(role, seed, layers), processor())


def ending_backbone(eos_ids=()):
    """The tiny verifier whose answers end at the given ids only."""
    backbone = tiny_backbone()
    backbone.eos_ids = tuple(eos_ids)
    return backbone


def fresh_backbone(role="verifier", seed=0, layers=3):
    """The same with a model of its own."""
    return Qwen3VLBackbone(copy.deepcopy(_model(role, seed, layers)), processor())


def tiny_drafter(selector="routed", layout="suffix", query="visual", num_routed=8, seed=1):
    """A randomly initialised routed drafter."""
    backbone = tiny_backbone("drafter", seed, 2)
    torch.manual_seed(seed)  # after the model, which draws only when it is not cached
    return RoutedDrafter(backbone, selector, layout, query, num_routed).eval()


def agreeing_drafter(verifier, noise=0.0, seed=7):
    """A drafter that copies the verifier, its language model disturbed by `noise` times its spread."""
    model = copy.deepcopy(verifier.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            spread = parameter.std() if parameter.ndim >= 2 else 0.0
            parameter += noise * spread * torch.randn(parameter.shape, generator=generator)
    return RoutedDrafter(type(verifier)(model, verifier.processor), "full", "inline").eval()


def save_backbone(backbone, folder):
    """Writes a folder that `load_backbone` reads."""
    backbone.model.save_pretrained(folder)
    backbone.processor.save_pretrained(folder)


def picture(seed=0):
    """A rendered scene."""
    return Image.fromarray(generate(seed).image)


def prompts(count):
    """Requests of different lengths: one image, two images, no image, and again."""
    made = []
    for index in range(count):
        images = tuple(picture(10 * index + i) for i in range((1, 2, 0)[index % 3]))
        made.append(Prompt(generate(index).turns[0].question, images, id=f"p{index}"))
    return made


def hf_inputs(prompt, own=None):
    """What the processor (`own` or the tiny pair's) gives transformers' own call for a prompt."""
    pictures = [{"type": "image", "image": image} for image in prompt.images]
    texts = [{"type": "text", "text": text} for text in prompt.text.split("<image>")]
    content = [{"type": "video", "video": video.frames} for video in prompt.videos]
    if len(texts) == 1:
        content = [*pictures, *content, *texts]
    else:
        content += [part for pair in zip(texts, pictures, strict=False) for part in pair] + texts[-1:]
    messages = [{"role": "user", "content": content}]
    if prompt.system:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
    frames = [(len(video.frames), video.fps) for video in prompt.videos]
    chosen = [VideoMetadata(n, rate, frames_indices=list(range(n))) for n, rate in frames]
    options = {"video_metadata": [chosen], "do_sample_frames": False} if frames else {}
    return (own or processor()).apply_chat_template(
        messages,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs=options,
    )


def hf_generate(backbone, prompt, **options):
    """New tokens of transformers' `generate`, which may not use the ids that pad the vocabulary."""
    inputs = hf_inputs(prompt, backbone.processor)
    padding = list(range(backbone.vocab_size, backbone.text_config.vocab_size))
    defaults = {"do_sample": False} | ({"suppress_tokens": padding} if padding else {})
    output = backbone.model.generate(**inputs, **defaults | options)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def save_pair(folder, layers=1):
    """Writes a tiny random pair; the options that make a task and its data use it, on few examples."""
    for seed, role in enumerate(("verifier", "drafter")):
        save_backbone(tiny_backbone(role, seed, layers), folder / role)
    return [
        f"--model.init_args.verifier={folder / 'verifier'}",
        f"--model.init_args.drafter={folder / 'drafter'}",
        "--model.init_args.max_new_tokens=6",
        f"--data.init_args.cache_dir={folder / 'cache'}",
        "--data.init_args.max_new_tokens=6",
        "--data.init_args.num_train=12",
        "--data.init_args.num_validation=2",
        "--data.init_args.num_test=2",
        "--data.init_args.batch_size=2",
    ]
