import json

import pytest
import torch
from helpers import picture
from hypothesis import given, settings
from hypothesis import strategies as st
from standins_llava import llava_next
from transformers import PreTrainedConfig

from data_modules.collate import Batch, Example
from tiger.backbones.base import Prompt, assemble
from tiger.backbones.llava_next import LlavaNextBackbone
from tiger.backbones.loading import family_of, load_backbone
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.custom_generate import speculative_generate
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.saving import load_drafter
from tiger.training import AcceptanceAlignment, KDWarmStart

NEW = 24
TASKS = {"kd": KDWarmStart, "align": AcceptanceAlignment}
TEXTS = ("llama", "mistral")
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
    """Verifier and drafter by text model; the drafter's tiles have fewer visual tokens in "coarse"."""
    root = tmp_path_factory.mktemp("llava")
    for text in TEXTS:
        llava_next(root / text / "verifier", "verifier", 0, text)
        llava_next(root / text / "drafter", "drafter", 1, text)
    llava_next(root / "llama" / "coarse", "drafter", 2, patch_size=14)
    return root


@pytest.fixture(params=TEXTS)
def backbone(folders, request):
    return load_backbone(str(folders / request.param / "verifier"))


@pytest.fixture(scope="module")
def vicuna(folders):
    return load_backbone(str(folders / "llama" / "verifier"))


def hf_inputs(backbone, *prompts):
    """What the processor gives transformers' own call for prompts, padded on the left."""
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
def test_all_rows_give_the_plain_forward(backbone):
    _, _, batch = assembled(backbone, REQUESTS)
    logits = backbone.logits(backbone.run_assembled(batch))
    for index, prompt in enumerate(REQUESTS):
        expected = backbone.model(**hf_inputs(backbone, prompt)).logits[0]
        assert batch.lengths[index] == len(expected)
        assert (logits[index, : len(expected)] - expected).abs().max() < 1e-5


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
        given = hf_inputs(backbone, prompt)
        features = backbone.model.get_image_features(given["pixel_values"], given["image_sizes"])
        assert (bank.tokens - torch.cat(list(features.pooler_output))).abs().max() < 1e-5
        ends = []
        for grid in bank.grids:
            line = [False] * grid.columns + [True] * grid.newlines
            ends += line * grid.rows
        assert [torch.equal(token, newline) for token in bank.tokens] == ends
    shapes = [(grid.rows, grid.columns) for grid in banks[1].grids]
    assert shapes == [(4, 4), (12, 4), (4, 4), (4, 12), (4, 4), (4, 8)]  # tall, wide, nearly two to one
    alone = backbone.encode(inputs[1:2])[0]
    assert (alone.tokens - banks[1].tokens).abs().max() < 1e-5


@settings(max_examples=60)
@given(height=st.integers(8, 300), width=st.integers(8, 300))
def test_grids_of_any_size_are_those_of_the_processor(height, width, vicuna):
    count = vicuna.processor._get_number_of_features(height, width, 28, 28) - 1  # without the class token
    assert sum(grid.size for grid in vicuna._grids([height, width])) == count


@torch.no_grad()
def test_pictures_reach_the_answer(backbone):
    logits = []
    for seed in (1, 2):
        _, _, batch = assembled(backbone, [Prompt("What?", (picture(seed),))])
        logits.append(backbone.logits(backbone.run_assembled(batch))[0, -1])
    assert (logits[0] - logits[1]).abs().max() > 1e-2


@torch.no_grad()
def test_prefill_then_tokens_equals_one_pass(backbone):
    _, _, batch = assembled(backbone, REQUESTS[1:2])
    whole = backbone.logits(backbone.run_assembled(batch))[0]
    cut = batch.lengths[0] - 6
    assert not batch.visual[0, cut:].any()
    cache = backbone.new_cache(1, batch.lengths[0])
    causal = torch.ones(cut, cut, dtype=torch.bool).tril()[None, None]
    backbone.run(batch.embeddings[:, :cut], batch.position_ids[..., :cut], causal, cache)
    cache.commit([cut])
    outputs = []
    for start, count in ((cut, 1), (cut + 1, 3), (cut + 4, 2)):
        part = slice(start, start + count)
        hidden = backbone.run(
            batch.embeddings[:, part], batch.position_ids[..., part], cache.mask(count), cache
        )
        outputs.append(backbone.logits(hidden)[0])
        cache.commit([count])
    assert (torch.cat(outputs) - whole[cut:]).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("index", [0, 1])
def test_dropping_rows_equals_masking_their_keys(backbone, index):
    _, banks, full = assembled(backbone, REQUESTS[index : index + 1])
    rows = torch.arange(len(banks[0]))[1::5]
    _, _, few = assembled(backbone, REQUESTS[index : index + 1], [rows])
    kept = torch.isin(full.bank_rows[0], rows) | ~full.visual[0]
    length = full.lengths[0]
    mask = torch.ones(length, length, dtype=torch.bool).tril() & (kept | torch.eye(length, dtype=torch.bool))
    masked = backbone.run(full.embeddings, full.position_ids, mask[None, None])
    dropped = backbone.run_assembled(few)
    assert torch.equal(few.position_ids, full.position_ids[:, :, kept])
    assert torch.equal(few.bank_rows[0][few.visual[0]], rows)
    assert (backbone.logits(masked[0, kept]) - backbone.logits(dropped[0])).abs().max() < 1e-5


@torch.no_grad()
def test_recomputed_attention_equals_the_eager_weights(backbone, folders):
    text = backbone.text_config.model_type
    eager = load_backbone(str(folders / text / "verifier"), attention="eager")
    _, _, batch = assembled(backbone, REQUESTS[:1])
    hidden, attention = backbone.run_with_attention(batch, num_layers=2)
    weights = eager.model(**hf_inputs(eager, REQUESTS[0]), output_attentions=True).attentions[-2:]
    weights = torch.stack(weights)
    assert (attention - weights.mean((0, 2))).abs().max() < 1e-5
    _, squares = backbone.run_with_attention(batch, num_layers=2, power=2.0)
    assert (squares - (weights**2).mean((0, 2))).abs().max() < 1e-5
    assert torch.equal(hidden, backbone.run_assembled(batch))
    _, _, ragged = assembled(backbone, REQUESTS)
    expected, found = backbone.run_assembled(ragged), eager.run_assembled(ragged)
    for row, length in enumerate(ragged.lengths):
        assert (expected[row, :length] - found[row, :length]).abs().max() < 1e-4


def test_chat_template_places_system_images_and_text_once(folders):
    said = {"llama": "<s>Be brief. USER: \n\n\nWhat is here? ASSISTANT:", "mistral": None}
    said["mistral"] = "<s>Be brief.[INST] \n\n\nWhat is here? [/INST]"
    for text, expected in said.items():
        backbone = load_backbone(str(folders / text / "verifier"))
        entry = backbone.prepare(REQUESTS[1])
        assert backbone.tokenizer.decode(entry.ids[~entry.visual]) == expected
        assert int((entry.ids == backbone.tokenizer.bos_token_id).sum()) == 1


def test_a_processor_without_chat_template_is_refused(backbone):
    backbone.processor.chat_template = None
    with pytest.raises(ValueError, match=r"no chat template\. Put the chat_template"):
        backbone.prepare(REQUESTS[0])


def test_an_image_token_in_the_words_is_refused(backbone):
    ids = backbone.prepare(REQUESTS[0]).ids
    given = hf_inputs(backbone, REQUESTS[0])
    more = torch.cat([ids, torch.tensor([backbone.model.config.image_token_id])])[None]
    with pytest.raises(ValueError, match="row 0 and its images differ by 1 visual tokens"):
        backbone.unbatch(more, pixel_values=given["pixel_values"], image_sizes=given["image_sizes"])


def test_batches_are_split_without_their_padding(backbone):
    given = hf_inputs(backbone, *REQUESTS)
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


def test_a_sliding_window_is_refused(backbone):
    if backbone.text_config.model_type == "mistral":
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
    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", lambda path: (config, {}))
    with pytest.raises(ValueError, match=f"liuhaotian/{name} is in the original format.*{conversion}"):
        family_of(f"liuhaotian/{name}")


@pytest.fixture(scope="module", params=TEXTS)
def reference(folders, request):
    """A verifier, its own answers by transformers' `generate`, and the folder of the pair."""
    backbone = load_backbone(str(folders / request.param / "verifier"))
    answers = []
    for prompt in REQUESTS:
        given = hf_inputs(backbone, prompt)
        output = backbone.model.generate(**given, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
        answers.append(output[0, given["input_ids"].shape[1] :].tolist())
    assert all(len(set(answer)) >= 8 for answer in answers)
    assert len(set(map(tuple, answers))) == len(answers)
    backbone.eos_ids = ()
    return backbone, answers, folders / request.param


def answers_of(decoder, rows):
    found = [a for i in range(0, len(REQUESTS), rows) for a in decoder.generate(REQUESTS[i : i + rows])]
    return [answer.tokens for answer in found], found


@pytest.mark.parametrize("rows", [1, 5])
def test_autoregressive_equals_generate(reference, rows):
    backbone, expected, _ = reference
    assert answers_of(AutoregressiveDecoder(backbone, NEW), rows)[0] == expected


@pytest.mark.parametrize("layout", ["suffix", "inline"])
@pytest.mark.parametrize(("block_size", "limit"), [(1, NEW), (4, NEW), (32, 4)])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_random_drafter_changes_nothing(reference, block_size, limit, rows, layout):
    backbone, expected, folder = reference
    drafter = load_drafter(str(folder / "drafter"), selector="routed", layout=layout)
    found, records = answers_of(SpeculativeDecoder(backbone, drafter, block_size, limit), rows)
    assert found == [answer[:limit] for answer in expected]
    assert all(len(entry.route) == 8 for entry in records[1].rounds)
    assert all(entry.route == [] for entry in records[2].rounds)  # no image, nothing to route


@pytest.mark.parametrize("block_size", [1, 4, 32])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_verifier_drafting_for_itself_is_always_accepted(reference, block_size, rows):
    backbone, expected, folder = reference
    drafter = load_drafter(str(folder / "verifier"))
    found, records = answers_of(SpeculativeDecoder(backbone, drafter, block_size, NEW), rows)
    assert found == expected
    for record in records:
        *whole, last = [entry.accepted for entry in record.rounds]
        assert whole == [block_size] * len(whole)
        assert last == min(block_size, NEW - 1 - len(whole) * (block_size + 1))


@pytest.mark.parametrize("block_size", [1, 4, 32])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_corrupted_copy_is_accepted_in_part(reference, block_size, rows):
    backbone, expected, folder = reference
    drafter = load_drafter(str(folder / "verifier"))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in drafter.backbone.model.get_decoder().parameters():
            if parameter.ndim >= 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.05 * parameter.std() * noise
    found, records = answers_of(SpeculativeDecoder(backbone, drafter, block_size, NEW), rows)
    assert found == expected
    accepted = [entry.accepted for record in records for entry in record.rounds]
    assert 0 < sum(accepted) < block_size * len(accepted)


def test_a_drafter_with_fewer_visual_tokens_changes_nothing(reference):
    backbone, expected, folder = reference
    drafter = load_drafter(str(folder.parent / "llama" / "coarse"), selector="routed", layout="suffix")
    decoder = SpeculativeDecoder(backbone, drafter, 4, NEW)
    assert not decoder.shares_inputs
    assert answers_of(decoder, 5)[0] == expected


def test_generate_with_our_loop_equals_plain_generate(reference):
    backbone, _, folder = reference
    drafter = load_drafter(str(folder / "drafter"), selector="routed", layout="suffix")
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    for prompts in (REQUESTS[1:2], REQUESTS):
        given = hf_inputs(backbone, *prompts)
        plain = backbone.model.generate(**given, **options)
        ours = backbone.model.generate(
            **given, **options, custom_generate=speculative_generate, drafter=drafter, block_size=4
        )
        assert torch.equal(ours, plain)
    coarse = load_drafter(str(folder.parent / "llama" / "coarse"))
    with pytest.raises(ValueError, match="patch_size is 7 in the verifier and 14 in the drafter"):
        backbone.model.generate(**given, custom_generate=speculative_generate, drafter=coarse)


def task(folders, kind, drafter="llama/coarse", **options):
    torch.manual_seed(0)
    settings = {"num_anchors": 2, "block_size": 4, "num_routed": 6} | options
    built = TASKS[kind](verifier=str(folders / "llama/verifier"), drafter=str(folders / drafter), **settings)
    built.configure_model()
    built.log = lambda *args, **kwargs: None
    return built.train()


def batch():
    generator = torch.Generator().manual_seed(0)
    return Batch(
        [
            Example(prompt, torch.randint(10, 250, (9,), generator=generator), "x", "x")
            for prompt in REQUESTS
            if prompt.images
        ]
    )


@pytest.mark.parametrize("layout", ["suffix", "inline"])
@pytest.mark.parametrize("kind", TASKS)
def test_the_stage_loss_alone_reaches_both_router_weights(folders, kind, layout):
    built = task(folders, kind, guidance_weight=0.0, layout=layout)
    built.training_step(batch(), 0).backward()
    assert built.drafter.router.query.weight.grad.norm() > 0
    assert built.drafter.router.key.weight.grad.norm() > 0


@pytest.mark.parametrize("drafter", ["llama/coarse", "llama/drafter"])
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
    frozen = ("vision_tower", "multi_modal_projector", "image_newline")
    assert changed == {name for name in before if not any(part in name for part in frozen)}


def test_guidance_of_a_coarser_drafter_lies_on_its_own_grid(folders):
    built = task(folders, "kd")
    texts, lessons = built.texts(batch().examples), built.lessons(batch().examples)
    found = built.block_attention(lessons, texts, torch.zeros(4, 2, dtype=torch.long))
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


def test_images_of_one_mode_are_read_as_rgb(backbone):
    grey = Prompt("What?", (picture(1).convert("L"),))
    alpha = Prompt("What?", (picture(1).convert("L").convert("RGBA"),))
    pixels = [backbone.prepare(prompt).pixels["pixel_values"] for prompt in (grey, alpha)]
    assert torch.equal(*pixels)
