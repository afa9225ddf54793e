"""Pruned verifiers against the whole model with masks, and the unpruned verifier where nothing is cut."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from standins import FAMILIES, save_standin

from tiger.backbones.base import Prompt, assemble
from tiger.backbones.grids import newline_tokens
from tiger.backbones.layers import layer_attention
from tiger.backbones.loading import load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.pruners import PRUNERS, build_pruner, decoder_options, is_pruner
from tiger.decoding.sparsevlm import Front, SparseVLM, stages, staying
from tiger.decoding.vispruner import VisPruner
from tiger.routing.pruning import text_raters

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "pruner"
NOISE = np.random.default_rng(0)
NEW = 6


def pictures(*sizes):
    return tuple(Image.fromarray(NOISE.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes)


BATCH = [
    Prompt("What is this?", pictures((64, 64)), id="one"),
    Prompt("Say something.", id="text"),
    Prompt("Compare them, please.", pictures((40, 150), (97, 64)), id="two"),
]


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request, tmp_path_factory):
    made = load_backbone(save_standin(request.param, tmp_path_factory.mktemp(request.param)))
    made.eos_ids = ()
    return made


def tokens(verifier, prompts=BATCH, **options):
    return [answer.tokens for answer in AutoregressiveDecoder(verifier, NEW, **options).generate(prompts)]


def assembled(backbone, prompt, answer=()):
    entry = backbone.prepare(prompt)
    (bank,) = backbone.encode([entry], use_importance=True)
    suffix = backbone.embed(torch.tensor(answer, dtype=torch.long))
    return entry, bank, assemble([entry], [bank], [backbone.embed(entry.ids)], None, [suffix])


def masked_logits(backbone, batch, hidden_by_layer):
    """Logits of the whole sequence, and what each layer reads; each is blind to its own hidden places."""
    length = batch.embeddings.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    handles = []
    for layer, hidden in zip(backbone.model.get_decoder().layers, hidden_by_layer, strict=True):
        mask = causal & (~hidden | torch.eye(length, dtype=torch.bool))

        def cut(module, args, kwargs, mask=mask):
            return args, kwargs | {"attention_mask": mask[None, None]}

        handles.append(layer.self_attn.register_forward_pre_hook(cut, with_kwargs=True))
    states = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, args: states.append(args[0]))
        for layer in backbone.model.get_decoder().layers
    ]
    logits = backbone.logits(backbone.run_assembled(batch))[0]
    for handle in handles + hooks:
        handle.remove()
    return logits, states


def assert_continues(logits, prompt_length, answer):
    found = logits[prompt_length - 1 : prompt_length - 1 + len(answer)].argmax(-1)
    assert found.tolist() == answer


@pytest.mark.parametrize("method", PRUNERS)
def test_keeping_all_answers_as_the_verifier(backbone, method):
    everything = {"vispruner": 1.0, "sparsevlm": [1.0, 1.0, 1.0]}[method]
    pruned = build_pruner({"method": method, "keep": everything}, backbone)
    assert tokens(pruned) == tokens(backbone)
    sampling = Sampling(1.0, top_k=5)
    assert tokens(pruned, sampling=sampling, seed=3) == tokens(backbone, sampling=sampling, seed=3)


@pytest.mark.parametrize("method", PRUNERS)
def test_text_alone_is_answered_as_by_the_verifier_and_no_row_depends_on_others(backbone, method):
    pruned = build_pruner({"method": method}, backbone)
    together, plain = tokens(pruned), tokens(backbone)
    assert together[1] == plain[1]
    assert together != plain  # lossy where there is something to see
    assert together == [tokens(pruned, [prompt])[0] for prompt in BATCH]


@torch.no_grad()
@pytest.mark.parametrize("prompt", [BATCH[0], BATCH[2]], ids=lambda prompt: prompt.id)
def test_vispruner_equals_masking_what_it_drops(backbone, prompt):
    pruner = VisPruner(backbone, 0.4)
    (answer,) = tokens(pruner, [prompt])
    entry, bank, batch = assembled(backbone, prompt, answer)
    rows = pruner.rows(bank)
    newlines = torch.tensor(newline_tokens(bank.grids))
    assert set(newlines.nonzero()[:, 0].tolist()) <= set(rows.tolist())
    kept = torch.zeros(len(bank)).bool()
    kept[rows] = True
    start = 0
    for grid in bank.grids:
        own = slice(start, start + grid.size)
        cells = grid.frames * grid.rows * grid.columns
        assert int((kept & ~newlines)[own].sum()) == max(1, round(0.4 * cells))
        start += grid.size
    hidden = batch.visual[0] & ~torch.isin(batch.bank_rows[0], rows)
    assert hidden.any()
    logits, _ = masked_logits(backbone, batch, [hidden] * backbone.num_layers)
    assert_continues(logits, len(entry.ids), answer)
    shown, (pruned,) = pruner.look([entry])
    assert len(shown[0].ids) == len(entry.ids) - int(hidden.sum())
    assert torch.equal(pruned.position_ids, bank.position_ids[:, rows])
    assert all(
        torch.equal(few, all_[rows]) for few, all_ in zip(pruned.deepstack, bank.deepstack, strict=True)
    )


@torch.no_grad()
@pytest.mark.parametrize("prompt", [BATCH[0], BATCH[2]], ids=lambda prompt: prompt.id)
def test_sparsevlm_equals_masking_what_has_left(backbone, prompt):
    shares = [0.8, 0.6, 0.3]
    pruner = SparseVLM(backbone, shares)
    (answer,) = tokens(pruner, [prompt])
    entry, bank, batch = assembled(backbone, prompt, answer)
    visual, length = batch.visual[0], len(entry.ids)
    behind = torch.arange(len(visual)) > int(visual.nonzero().max())
    words = [place for place in behind.nonzero()[:, 0].tolist() if place < length]
    votes = text_raters(bank.tokens, batch.embeddings[0, words]).tolist()
    raters = [place for place, vote in zip(words, votes, strict=True) if vote]
    hidden, by_layer = torch.zeros_like(visual), []
    for layers, share in pruner.stages:
        by_layer += [hidden] * len(layers)
        logits, states = masked_logits(
            backbone, batch, by_layer + [hidden] * (backbone.num_layers - len(by_layer))
        )
        if share is None:
            break
        layer, left = layers[-1], (~hidden).nonzero()[:, 0].tolist()  # the layer that rates sees no others
        weights = layer_attention(backbone, layer, states[layer][:, left], batch.position_ids[:, :, left])[0]
        rates = {
            place: sum(float(weights[left.index(rater), left.index(place)]) for rater in raters)
            for place in left
            if visual[place]
        }
        count = max(1, round(share * len(bank)))
        kept = sorted(rates, key=lambda place: -rates[place])[:count]
        hidden = visual & ~torch.isin(torch.arange(len(visual)), torch.tensor(kept))
    assert int(hidden.sum()) == len(bank) - round(0.3 * len(bank))
    assert_continues(logits, length, answer)


@torch.no_grad()
def test_tokens_really_leave(backbone):
    pruner = SparseVLM(backbone, [0.5, 0.5, 0.25])
    inputs = [backbone.prepare(prompt) for prompt in BATCH]
    state, _ = pruner.prefill(inputs, reserve=4)
    sizes = [int(entry.visual.sum()) for entry in inputs]
    expected = [[len(entry.ids) for entry in inputs]]
    for share in (0.5, 0.25):
        expected.append(
            [
                len(e.ids) - n + (max(1, round(share * n)) if n else 0)
                for e, n in zip(inputs, sizes, strict=True)
            ]
        )
    assert [cache.lengths for cache in state.caches] == expected
    assert [cache.capacity for cache in state.caches] == [max(row) + 4 for row in expected]
    assert state.next_positions == [entry.next_position for entry in inputs]
    state.select_rows([2, 0])
    assert [cache.lengths for cache in state.caches] == [[row[2], row[0]] for row in expected]


def test_what_stays_is_the_slow_choice():
    generator = torch.Generator().manual_seed(0)
    visual = torch.tensor([[0, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]).bool()
    raters = torch.tensor([[0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 1, 0, 0, 0]]).bool()
    for _ in range(20):
        attention = torch.rand(2, 7, 7, generator=generator)
        front = Front(torch.zeros(2, 7, 1), torch.zeros(1, 2, 7), [7, 4], visual, raters, ())
        found = staying(front, attention, [2, 5])
        totals = {place: sum(attention[0, rater, place].item() for rater in (4, 6)) for place in (1, 2, 3)}
        worst = min(totals, key=totals.get)
        assert found[0].nonzero()[:, 0].tolist() == [place for place in range(7) if place != worst]
        assert found[1].nonzero()[:, 0].tolist() == [0, 1, 2, 3]  # fewer than asked for; no padding


@pytest.mark.parametrize(
    ("depth", "runs"),
    [
        (32, [(range(3), 0.5), (range(3, 7), 0.3), (range(7, 16), 0.1), (range(16, 32), None)]),
        (36, [(range(3), 0.5), (range(3, 8), 0.3), (range(8, 18), 0.1), (range(18, 36), None)]),
        (3, [(range(1), 0.5), (range(1, 2), 0.1), (range(2, 3), None)]),
        (2, [(range(1), 0.1), (range(1, 2), None)]),
    ],
)
def test_layers_are_relative_to_the_depth(depth, runs):
    assert stages(depth, [0.5, 0.3, 0.1]) == runs


@torch.no_grad()
def test_recorded_attention_of_a_layer_is_that_of_the_whole_model(backbone):
    _, _, batch = assembled(backbone, BATCH[0])
    nothing = torch.zeros_like(batch.visual[0])
    _, states = masked_logits(backbone, batch, [nothing] * backbone.num_layers)
    found = layer_attention(backbone, backbone.num_layers - 1, states[-1], batch.position_ids)
    assert (found - backbone.run_with_attention(batch, 1)[1]).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vispruner", "keep": 0}, r"keep is \[0\]; keep a share above 0"),
        ({"method": "vispruner", "keep": 1.5}, "at most 1"),
        ({"method": "sparsevlm", "keep": [0.5, 0.3, 0.0]}, "keep a share above 0"),
        ({"method": "sparsevlm", "keep": [0.5, 0.3]}, "give 3 shares"),
        ({"method": "sparsevlm", "keep": [0.3, 0.5, 0.1]}, "none above the one before"),
        ({"method": "vispruner", "num_kept": 8}, "'vispruner' cannot take .*num_kept"),
    ],
)
def test_unusable_options(backbone, options, message):
    with pytest.raises(ValueError, match=message):
        build_pruner(options, backbone)


def test_sparsevlm_needs_text_behind_the_pictures(backbone):
    entry = backbone.prepare(BATCH[0])
    end = int(entry.visual.nonzero().max()) + 1
    cut = type(entry)(entry.ids[:end], entry.position_ids[:, :end], entry.visual[:end], entry.pixels)
    with pytest.raises(ValueError, match=r"ends in visual tokens.*Put text last"):
        tokens(SparseVLM(backbone), [Prompt("", prepared=cut)])
    positions = VisPruner(backbone, 0.1).prefill([cut], 1)[0].next_positions
    assert positions == [cut.next_position]


@pytest.mark.parametrize("name", PRUNERS)
def test_shipped_files_are_the_defaults(backbone, name):
    path = CONFIGS / f"{name}.yaml"
    options = decoder_options(str(path))
    assert options == yaml.safe_load(path.read_text())
    built, plain = build_pruner(options, backbone), build_pruner(decoder_options(name), backbone)
    assert type(built) is type(plain) is PRUNERS[name]
    assert tokens(built, BATCH[:1]) == tokens(plain, BATCH[:1])
    assert {found.stem for found in CONFIGS.glob("*.yaml")} == set(PRUNERS)


def test_names():
    assert [is_pruner(name) for name in ("vispruner", "racer", "tiny/tiger", None)] == [
        True,
        False,
        False,
        False,
    ]


def test_a_model_of_one_layer_is_refused(backbone, monkeypatch):
    monkeypatch.setattr(type(backbone), "num_layers", 1)
    with pytest.raises(ValueError, match="has one layer"):
        SparseVLM(backbone)
