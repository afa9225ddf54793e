import pytest
import torch
from helpers import fresh_backbone, hf_inputs, prompts, tiny_backbone

from tiger.backbones.base import ModelInputs, Prompt, assemble
from tiger.backbones.qwen3_vl import Qwen3VLBackbone

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def assembled(backbone, requests, rows=None, with_global=False):
    inputs = [backbone.prepare(prompt) for prompt in requests]
    banks = [bank.with_global() if with_global and len(bank) else bank for bank in backbone.encode(inputs)]
    return inputs, banks, assemble(inputs, banks, [backbone.embed(entry.ids) for entry in inputs], rows)


def reference(backbone, prompt):
    return backbone.model(**hf_inputs(prompt)).logits[0]


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_all_rows_give_the_plain_forward(role):
    backbone = tiny_backbone(role)
    batch = prompts(5)
    _, _, rows = assembled(backbone, batch)
    logits = backbone.logits(backbone.run_assembled(rows))
    for index, prompt in enumerate(batch):
        expected = reference(backbone, prompt)
        assert rows.lengths[index] == len(expected)
        assert (logits[index, : len(expected)] - expected).abs().max() < 1e-5


def test_prefill_then_tokens_equals_one_pass():
    backbone = tiny_backbone()
    prompt = prompts(2)[1]
    _, _, batch = assembled(backbone, [prompt])
    whole = backbone.logits(backbone.run_assembled(batch))[0]
    cut = batch.lengths[0] - 6  # behind the images
    assert not batch.visual[0, cut:].any()
    cache = backbone.new_cache(1, batch.lengths[0])
    head = type(batch)(
        batch.embeddings[:, :cut],
        batch.position_ids[..., :cut],
        [cut],
        batch.visual[:, :cut],
        batch.deepstack,
        batch.bank_rows[:, :cut],
    )
    backbone.run_assembled(head, cache)
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


def test_positions_are_those_of_the_model():
    backbone = tiny_backbone()
    for prompt in prompts(3):
        inputs = hf_inputs(prompt)
        expected, delta = backbone.model.model.get_rope_index(
            inputs["input_ids"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            attention_mask=inputs["attention_mask"],
        )
        entry = backbone.prepare(prompt)
        assert torch.equal(entry.position_ids, expected[:, 0])
        assert entry.next_position == len(entry.ids) + int(delta)


def test_the_models_own_position_state_is_neither_read_nor_written():
    backbone = fresh_backbone()
    prompt = prompts(1)[0]
    _, _, batch = assembled(backbone, [prompt])
    before = backbone.run_assembled(batch)
    stale = torch.tensor([[1000]])
    backbone.model.model.rope_deltas = stale
    _, _, again = assembled(backbone, [prompt])
    assert torch.equal(backbone.run_assembled(again), before)
    assert backbone.model.model.rope_deltas is stale


def test_bank_carries_grids_positions_and_deepstack():
    backbone = tiny_backbone("verifier")
    inputs, banks, _ = assembled(backbone, prompts(3))
    assert [len(bank.grids) for bank in banks] == [1, 2, 0]
    for entry, bank in zip(inputs, banks, strict=True):
        assert len(bank) == sum(grid.size for grid in bank.grids) == int(entry.visual.sum())
        assert torch.equal(bank.position_ids, entry.position_ids[:, entry.visual])
        assert len(bank.deepstack) == 1
        assert len(bank.deepstack[0]) == len(bank)
    # Encoding together or alone is the same.
    alone = backbone.encode(inputs[1:2])[0]
    assert (alone.tokens - banks[1].tokens).abs().max() < 1e-5


def test_deepstack_and_its_subset_matter():
    backbone = tiny_backbone("verifier")
    _, _, batch = assembled(backbone, prompts(1))
    complete = backbone.run_assembled(batch)
    bare = type(batch)(
        *(getattr(batch, n) for n in ("embeddings", "position_ids", "lengths", "visual")), (), batch.bank_rows
    )
    assert (backbone.run_assembled(bare) - complete).abs().max() > 1e-3


@pytest.mark.parametrize("index", [0, 1])
def test_dropping_rows_equals_masking_their_keys(index):
    backbone = tiny_backbone("verifier")
    prompt = prompts(2)[index]
    _, banks, full = assembled(backbone, [prompt])
    rows = torch.arange(len(banks[0]))[1::5]
    _, _, few = assembled(backbone, [prompt], [rows])
    kept = torch.isin(full.bank_rows[0], rows) | ~full.visual[0]
    length = full.lengths[0]
    mask = torch.ones(length, length, dtype=torch.bool).tril() & (kept | torch.eye(length, dtype=torch.bool))
    masked = backbone.run(
        full.embeddings, full.position_ids, mask[None, None], None, full.visual, full.deepstack
    )
    dropped = backbone.run_assembled(few)
    assert torch.equal(few.position_ids, full.position_ids[:, :, kept])
    assert torch.equal(few.bank_rows[0][few.visual[0]], rows)
    difference = backbone.logits(masked[0, kept]) - backbone.logits(dropped[0])
    assert difference.abs().max() < 1e-5


def test_global_token_stands_behind_the_last_visual_one():
    backbone = tiny_backbone("verifier")
    inputs, banks, batch = assembled(backbone, prompts(2)[1:], with_global=True)
    bank, last = banks[0], int(inputs[0].visual.nonzero().max())
    assert int(batch.bank_rows[0, last + 1]) == len(bank) - 1
    assert torch.allclose(bank.tokens[-1], bank.tokens[:-1].mean(0))
    assert torch.allclose(bank.deepstack[0][-1], bank.deepstack[0][:-1].mean(0))
    assert batch.lengths[0] == len(inputs[0].ids) + 1


def test_recomputed_attention_equals_the_eager_weights():
    backbone, eager = tiny_backbone("verifier"), fresh_backbone("verifier")
    eager.model.set_attn_implementation("eager")
    prompt = prompts(1)[0]
    _, _, batch = assembled(backbone, [prompt])
    hidden, attention = backbone.run_with_attention(batch, num_layers=2)
    weights = torch.stack(eager.model(**hf_inputs(prompt), output_attentions=True).attentions[-2:])
    assert attention.shape == weights.shape[1:2] + weights.shape[3:]
    assert (attention - weights.mean((0, 2))).abs().max() < 1e-5
    _, squares = backbone.run_with_attention(batch, num_layers=2, power=2.0)
    assert (squares - (weights**2).mean((0, 2))).abs().max() < 1e-5
    assert torch.equal(hidden, backbone.run_assembled(batch))
    layers = backbone.model.model.language_model.layers
    assert not any(layer.self_attn._forward_pre_hooks for layer in layers)


def test_eager_attention_understands_bool_masks():
    backbone, eager = tiny_backbone(), fresh_backbone()
    eager.model.set_attn_implementation("eager")
    _, _, batch = assembled(backbone, prompts(2))
    lengths = batch.lengths
    expected, found = backbone.run_assembled(batch), eager.run_assembled(batch)
    for row, length in enumerate(lengths):
        assert (expected[row, :length] - found[row, :length]).abs().max() < 1e-4


def test_other_attention_is_refused():
    backbone = fresh_backbone(layers=1)
    backbone.model.config.text_config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="'sdpa' or 'eager'"):
        Qwen3VLBackbone(backbone.model, backbone.processor)


def test_end_ids_may_be_one_several_none_or_zero():
    backbone = fresh_backbone(layers=1)
    for given, expected in ((3, (3,)), ([4, 0], (4, 0)), (0, (0,))):
        backbone.model.generation_config.eos_token_id = given
        assert Qwen3VLBackbone(backbone.model, backbone.processor).eos_ids == expected
    backbone.model.generation_config.eos_token_id = None
    backbone.model.config.text_config.eos_token_id = None
    assert Qwen3VLBackbone(backbone.model, backbone.processor).eos_ids == ()


def test_system_message_is_read():
    backbone = tiny_backbone()
    plain = backbone.prepare(Prompt("what?"))
    told = backbone.prepare(Prompt("what?", system="Be brief."))
    assert "Be brief." in backbone.tokenizer.decode(told.ids)
    assert len(told.ids) > len(plain.ids)


def test_prompt_longer_than_the_context_names_both_lengths():
    backbone = tiny_backbone()
    with pytest.raises(ValueError, match=r"'long' has \d{4} tokens, the context holds 1024"):
        backbone.prepare(Prompt("K7" * 600, id="long"))
    ids = torch.zeros(1024, dtype=torch.long)
    ready = ModelInputs(ids, ids.expand(3, -1), ids.bool())
    with pytest.raises(ValueError, match="1024 tokens, the context holds 1024"):
        backbone.prepare(Prompt("", id="ready", prepared=ready))


def test_batches_are_split_without_their_padding():
    backbone = tiny_backbone()
    requests = prompts(5)
    singles = [backbone.prepare(prompt) for prompt in requests]
    width = max(len(entry.ids) for entry in singles)
    pad = torch.nn.functional.pad
    ids = torch.stack([pad(entry.ids, (width - len(entry.ids), 0)) for entry in singles])
    mask = torch.stack([pad(torch.ones_like(entry.ids), (width - len(entry.ids), 0)) for entry in singles])
    pixels = [entry.pixels for entry in singles if entry.pixels]
    joined = {key: torch.cat([entry[key] for entry in pixels]) for key in ("pixel_values", "image_grid_thw")}
    for row, single in zip(backbone.unbatch(ids, mask, **joined), singles, strict=True):
        assert torch.equal(row.ids, single.ids)
        assert torch.equal(row.position_ids, single.position_ids)
        assert torch.equal(row.visual, single.visual)
        assert row.pixels.keys() == single.pixels.keys()
        assert all(torch.equal(row.pixels[key], single.pixels[key]) for key in row.pixels)
    with pytest.raises(ValueError, match="differ by 64 visual tokens"):
        backbone.unbatch(ids, mask, **{key: value[:0] for key, value in joined.items()})
    with pytest.raises(ValueError, match="4 images were given, the token ids have places for 1"):
        backbone.unbatch(
            ids[:1],
            mask[:1],
            pixel_values=joined["pixel_values"],
            image_grid_thw=joined["image_grid_thw"][:4],
        )
