"""What is special about LLaVA-NeXT; test_families.py holds what it shares with every family."""

import json

import pytest
import torch
from helpers import hf_inputs, picture
from hypothesis import given, settings
from hypothesis import strategies as st
from standins import SIDE, save_standin

from data_modules.collate import Batch, Example
from tiger.backbones import loading
from tiger.backbones.base import Prompt, assemble
from tiger.backbones.llava_next import LlavaNextBackbone
from tiger.backbones.loading import family_of, load_backbone
from tiger.decoding.custom_generate import speculative_generate
from tiger.drafting.saving import load_drafter
from tiger.training import AcceptanceAlignment, KDWarmStart
from tiger.training.block_attention import block_attention

TASKS = {"kd": KDWarmStart, "align": AcceptanceAlignment}
FAMILIES = ("llava_next", "llava_next_mistral")
REQUESTS = [
    Prompt("How many?", (picture(1),), id="one"),
    Prompt(
        "What is here?",
        (picture(2).resize((30, 90)), picture(3).resize((200, 50)), picture(4).crop((0, 0, 57, 33))),
        system="Be brief.",
        id="three sizes",
    ),
    Prompt("Is that right?", id="text"),
    Prompt("Which colour?", (picture(5).resize((20, 20)),), id="small"),
    Prompt("Compare.", (picture(6).resize((64, 100)), picture(7)), id="two"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By family: a verifier, a drafter with fewer visual tokens a tile, and one that reads images alike."""
    root = tmp_path_factory.mktemp("llava")
    for family in FAMILIES:
        for name, role, seed in (
            ("verifier", "verifier", 0),
            ("drafter", "drafter", 1),
            ("alike", "verifier", 2),
        ):
            save_standin(family, root / family / name, role, seed)
    return root


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def backbone(folders, family):
    return load_backbone(str(folders / family / "verifier"))


@pytest.fixture(scope="module")
def vicuna(folders):
    return load_backbone(str(folders / "llava_next" / "verifier"))


def batched(backbone, prompts):
    """Left-padded inputs of several prompts, as users make them."""
    chats = []
    for prompt in prompts:
        content = [{"type": "image", "image": image} for image in prompt.images]
        chat = [{"role": "user", "content": [*content, {"type": "text", "text": prompt.text}]}]
        if prompt.system:
            chat.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
        chats.append(chat)
    return backbone.processor.apply_chat_template(
        chats,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs={"padding": True},
    )


def assembled(backbone, prompts, rows=None):
    inputs = [backbone.prepare(prompt) for prompt in prompts]
    banks = backbone.encode(inputs)
    return inputs, banks, assemble(inputs, banks, [backbone.embed(entry.ids) for entry in inputs], rows)


@torch.no_grad()
def test_the_bank_is_what_the_model_puts_at_the_image_tokens(backbone):
    inputs, banks, _ = assembled(backbone, REQUESTS)
    newline = backbone.model.model.image_newline
    for prompt, entry, bank in zip(REQUESTS, inputs, banks, strict=True):
        assert len(bank.grids) == 2 * len(prompt.images)
        assert len(bank) == sum(grid.size for grid in bank.grids) == int(entry.visual.sum())
        assert torch.equal(bank.position_ids[0], entry.visual.nonzero()[:, 0])
        assert torch.equal(entry.position_ids[0], torch.arange(len(entry.ids)))
        if not prompt.images:
            continue
        given = hf_inputs(prompt, backbone.processor)
        features = backbone.model.get_image_features(given["pixel_values"], given["image_sizes"])
        assert (bank.tokens - torch.cat(list(features.pooler_output))).abs().max() < 1e-5
        ends = []
        for grid in bank.grids:
            line = [False] * grid.columns + [True] * grid.newlines
            ends += line * grid.rows
        assert [torch.equal(token, newline) for token in bank.tokens] == ends
    shapes = [(grid.rows, grid.columns) for grid in banks[1].grids]
    assert shapes == [(3, 3), (9, 3), (3, 3), (3, 9), (3, 3), (4, 6)]  # tall, wide, seven to four
    alone = backbone.encode(inputs[1:2])[0]
    assert (alone.tokens - banks[1].tokens).abs().max() < 1e-5


@settings(max_examples=60)
@given(height=st.integers(8, 300), width=st.integers(8, 300))
def test_grids_of_any_size_are_those_of_the_processor(height, width, vicuna):
    count = vicuna.processor._get_number_of_features(height, width, SIDE, SIDE) - 1  # without the class token
    assert sum(grid.size for grid in vicuna._grids([height, width])) == count


@torch.no_grad()
def test_pictures_reach_the_answer(backbone):
    logits = []
    for seed in (1, 2):
        _, _, batch = assembled(backbone, [Prompt("What?", (picture(seed),))])
        logits.append(backbone.logits(backbone.run_assembled(batch))[0, -1])
    assert (logits[0] - logits[1]).abs().max() > 1e-2


@torch.no_grad()
def test_recomputed_attention_equals_the_eager_weights(backbone, folders, family):
    eager = load_backbone(str(folders / family / "verifier"), attention="eager")
    _, _, batch = assembled(backbone, REQUESTS[:1])
    hidden, attention = backbone.run_with_attention(batch, num_layers=2)
    weights = eager.model(**hf_inputs(REQUESTS[0], eager.processor), output_attentions=True).attentions[-2:]
    weights = torch.stack(weights)
    assert (attention - weights.mean((0, 2))).abs().max() < 1e-5
    _, squares = backbone.run_with_attention(batch, num_layers=2, power=2.0)
    assert (squares - (weights**2).mean((0, 2))).abs().max() < 1e-5
    assert torch.equal(hidden, backbone.run_assembled(batch))
    _, _, ragged = assembled(backbone, REQUESTS)
    expected, found = backbone.run_assembled(ragged), eager.run_assembled(ragged)
    for row, length in enumerate(ragged.lengths):
        assert (expected[row, :length] - found[row, :length]).abs().max() < 1e-4


def test_chat_template_places_system_images_and_text_once(backbone, family):
    entry = backbone.prepare(REQUESTS[1])
    assert (
        backbone.tokenizer.decode(entry.ids[~entry.visual])
        == {
            "llava_next": "<s>Be brief. USER: \n\n\nWhat is here? ASSISTANT:",
            "llava_next_mistral": "<s>Be brief.[INST] \n\n\nWhat is here? [/INST]",
        }[family]
    )
    assert int((entry.ids == backbone.tokenizer.bos_token_id).sum()) == 1


def test_a_processor_without_chat_template_is_refused(backbone):
    backbone.processor.chat_template = None
    with pytest.raises(ValueError, match=r"no chat template\. Put the chat_template"):
        backbone.prepare(REQUESTS[0])


def test_an_image_token_in_the_words_is_refused(backbone):
    ids = backbone.prepare(REQUESTS[0]).ids
    given = hf_inputs(REQUESTS[0], backbone.processor)
    more = torch.cat([ids, torch.tensor([backbone.model.config.image_token_id])])[None]
    with pytest.raises(ValueError, match="row 0 and its images differ by 1 visual tokens"):
        backbone.unbatch(more, pixel_values=given["pixel_values"], image_sizes=given["image_sizes"])


def test_batches_are_split_without_their_padding(backbone):
    given = batched(backbone, REQUESTS)
    assert (given["attention_mask"] == 0).any()
    assert given["pixel_values"].shape[:2] == (7, 5)  # some of seven images have fewer than five tiles
    singles = [backbone.prepare(prompt) for prompt in REQUESTS]
    for row, single in zip(backbone.unbatch(**given), singles, strict=True):
        assert torch.equal(row.ids, single.ids)
        assert torch.equal(row.position_ids, single.position_ids)
        assert torch.equal(row.visual, single.visual)
        assert row.pixels.keys() == single.pixels.keys()
        assert all(torch.equal(row.pixels[key], single.pixels[key]) for key in row.pixels)
    assert len(singles[1].pixels["pixel_values"]) == 4 + 4 + 5
    with pytest.raises(ValueError, match="7 images were given, the token ids have places for 1"):
        backbone.unbatch(**given | {"input_ids": singles[0].ids[None], "attention_mask": None})
    with pytest.raises(ValueError, match="belong together"):
        backbone.unbatch(**given | {"image_sizes": None})
    with pytest.raises(ValueError, match="An image needs 5 tiles, the processor made 3"):
        backbone.unbatch(**given | {"pixel_values": given["pixel_values"][:, :3]})


def test_a_sliding_window_is_refused(folders):
    backbone = load_backbone(str(folders / "llava_next_mistral" / "verifier"))
    backbone.model.config.text_config.sliding_window = 64
    with pytest.raises(ValueError, match=r"last 64 tokens only.*sliding_window to null"):
        LlavaNextBackbone(backbone.model, backbone.processor)


def test_other_text_models_and_attention_are_refused(backbone):
    backbone.model.config.text_config.model_type = "qwen2"
    with pytest.raises(ValueError, match="'qwen2'; LLaVA-NeXT is supported with llama or mistral"):
        LlavaNextBackbone(backbone.model, backbone.processor)
    backbone.model.config.text_config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="'sdpa' or 'eager'"):
        LlavaNextBackbone(backbone.model, backbone.processor)


@pytest.mark.parametrize(
    ("name", "model_type", "conversion"),
    [
        ("llava-v1.6-vicuna-7b", "llava", "llava-hf/llava-v1.6-vicuna-7b-hf"),
        ("llava-v1.6-mistral-7b", "llava_mistral", "llava-hf/llava-v1.6-mistral-7b-hf"),
        ("my-own", "llava_llama", r"llava-hf/llava-v1.6-\*-hf"),
    ],
)
def test_original_checkpoints_name_their_conversion(name, model_type, conversion, tmp_path, monkeypatch):
    config = {"model_type": model_type, "mm_vision_tower": "openai/clip-vit-large-patch14-336"}
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"original format of LLaVA.*{conversion}"):
        load_backbone(str(tmp_path / name))
    monkeypatch.setattr(loading, "resolve", lambda path, files: tmp_path / name)
    with pytest.raises(ValueError, match=f"liuhaotian/{name} is in the original format.*{conversion}"):
        family_of(f"liuhaotian/{name}")


def test_generate_with_our_loop_equals_plain_generate(backbone, folders, family):
    drafter = load_drafter(str(folders / family / "alike"), selector="routed", layout="suffix")
    padding = list(range(backbone.vocab_size, backbone.text_config.vocab_size))
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    for prompts in (REQUESTS[1:2], REQUESTS):
        given = batched(backbone, prompts)
        plain = backbone.model.generate(**given, **options, suppress_tokens=padding)
        ours = backbone.model.generate(
            **given, **options, custom_generate=speculative_generate, drafter=drafter, block_size=4
        )
        assert torch.equal(ours, plain)
    coarse = load_drafter(str(folders / family / "drafter"))
    with pytest.raises(ValueError, match="patch_size is 8 in the verifier and 12 in the drafter"):
        backbone.model.generate(**given, custom_generate=speculative_generate, drafter=coarse)
    coarse.backbone.model.config.vision_config.patch_size = 8
    coarse.backbone.model.config.image_grid_pinpoints = [[SIDE, SIDE]]
    with pytest.raises(ValueError, match=r"image_grid_pinpoints is .* in the verifier"):
        backbone.model.generate(**given, custom_generate=speculative_generate, drafter=coarse)


def task(folders, kind, drafter="drafter", **options):
    torch.manual_seed(0)
    folder = folders / "llava_next"
    settings = {"num_anchors": 2, "block_size": 4, "num_routed": 6} | options
    built = TASKS[kind](verifier=str(folder / "verifier"), drafter=str(folder / drafter), **settings)
    built.configure_model()
    built.log = lambda *args, **kwargs: None
    return built.train()


def batch():
    generator = torch.Generator().manual_seed(0)
    return Batch(
        [
            Example(prompt, torch.randint(10, 200, (9,), generator=generator), "x", "x")
            for prompt in REQUESTS
            if prompt.images
        ]
    )


@pytest.mark.parametrize("drafter", ["drafter", "alike"])
@pytest.mark.parametrize("kind", TASKS)
def test_one_step_trains_the_drafter_and_nothing_else(folders, kind, drafter):
    built = task(folders, kind, drafter)
    before = {name: value.clone() for name, value in built.drafter.state_dict().items()}
    verifier = {name: value.clone() for name, value in built.verifier.state_dict().items()}
    optimizer = built.configure_optimizers()["optimizer"]
    loss = built.training_step(batch(), 0)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert all(torch.equal(value, verifier[name]) for name, value in built.verifier.state_dict().items())
    changed = {n for n, value in built.drafter.state_dict().items() if not torch.equal(value, before[n])}
    frozen = ("vision_tower", "multi_modal_projector", "image_newline", "draft_temperature")
    assert changed == {name for name in before if not any(part in name for part in frozen)}


def test_guidance_of_a_coarser_drafter_lies_on_its_own_grid(folders):
    built = task(folders, "kd")
    texts, lessons = built.texts(batch().examples), built.lessons(batch().examples)
    found = block_attention(lessons, texts, torch.zeros(4, 2, dtype=torch.long), built.block_size)
    for row, bank in enumerate(texts.banks):
        ends = [
            end
            for grid in bank.grids
            for _ in range(grid.rows)
            for end in [False] * grid.columns + [True] * grid.newlines
        ]
        newline = torch.tensor([*ends, True])  # the global token, too, gets none
        assert len(newline) == len(bank)
        assert found[row, :, : len(bank)][:, newline].abs().max() == 0
        assert (found[row, :, : len(bank)][:, ~newline] > 0).all()


def test_the_vision_side_trains_if_asked_to(folders):
    built = task(folders, "kd", train_vision=True)
    built.training_step(batch(), 0).backward()
    model = built.drafter.backbone.model.model
    assert model.multi_modal_projector.linear_1.weight.grad.norm() > 0
    assert model.vision_tower.embeddings.patch_embedding.weight.grad.norm() > 0


@pytest.mark.parametrize("chosen", [-2, -1, 1, [0, -2]])
def test_vision_weights_behind_the_chosen_layers_are_unused(folders, chosen):
    """As gradients tell: the stand-in's tower has three layers."""
    backbone = load_backbone(str(folders / "llava_next" / "drafter"))
    projector = backbone.model.model.multi_modal_projector
    if isinstance(chosen, list):
        width = projector.linear_1.in_features * len(chosen)
        projector.linear_1 = torch.nn.Linear(width, projector.linear_1.out_features)
    backbone.model.config.vision_feature_layer = chosen
    (bank,) = backbone.encode([backbone.prepare(REQUESTS[0])])
    bank.tokens.square().sum().backward()
    idle = {id(p) for p in backbone.vision_parameters() if p.grad is None}
    assert idle == {id(p) for p in backbone.unused_parameters()}


def test_images_of_one_mode_are_read_as_rgb(backbone):
    grey = Prompt("What?", (picture(1).convert("L"),))
    alpha = Prompt("What?", (picture(1).convert("L").convert("RGBA"),))
    pixels = [backbone.prepare(prompt).pixels["pixel_values"] for prompt in (grey, alpha)]
    assert torch.equal(*pixels)
