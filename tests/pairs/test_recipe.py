import copy
import math
import sys

import pytest
import torch
from helpers import processor
from PIL import Image
from safetensors.torch import load_file

from data_modules.synthetic.world import KINDS, LABELS, generate
from tiger.backbones.base import Prompt
from tiger.backbones.loading import load_backbone
from tiger.backbones.qwen3_vl import Qwen3VLBackbone
from tiger.drafting.saving import load_drafter, save_drafter
from tiger.pairs.recipe import __main__ as recipe
from tiger.pairs.recipe import architecture, evaluate, ship, train
from tiger.pairs.recipe.packing import Packer, batches


@pytest.fixture(scope="module")
def packer():
    return Packer(processor(), length=288)


@pytest.fixture
def small(monkeypatch):
    sizes = copy.deepcopy(architecture.SIZES)
    for role in sizes.values():
        role["text"]["num_hidden_layers"] = 2
        role["vision"] |= {"depth": 2}
    monkeypatch.setattr(architecture, "SIZES", sizes)


def test_turns_stand_where_a_single_prompt_would_put_them(packer, small):
    """Logits at a packed answer equal those of the turn asked alone through the chat template."""
    model = architecture.build_model("drafter", processor().tokenizer).eval()
    backbone = Qwen3VLBackbone(model, processor())
    sample = generate(3, "chart")
    batch = packer.pack([sample])
    with torch.no_grad():
        tokens, deepstack = train.encode(model, batch.pixel_values, 1)
        packed, _ = train.language_loss(model, batch, tokens, deepstack)
        losses, count = 0.0, 0
        kept = int((batch.ids[0] == backbone.eos_ids[0]).sum()) // 2
        for turn in sample.turns[:kept]:
            inputs = backbone.prepare(Prompt(turn.question, (Image.fromarray(sample.image),)))
            answer = processor().tokenizer(f"{turn.answer}<|im_end|>", return_tensors="pt")["input_ids"][0]
            ids = torch.cat([inputs.ids, answer])[None]
            logits = model(
                input_ids=ids,
                mm_token_type_ids=(ids == model.config.image_token_id).int(),
                **inputs.pixels,
            ).logits[0, len(inputs.ids) - 1 : -1]
            losses += float(torch.nn.functional.cross_entropy(logits, answer, reduction="sum"))
            count += len(answer)
    assert count == int((batch.targets != -100).sum())
    assert float(packed) == pytest.approx(losses / count, abs=1e-4)


def test_words_name_the_cells_that_show_them(packer):
    cells = {label: torch.full((64,), -1) for label in LABELS}
    for cell, colour, shape in ((3, "red", "star"), (9, "red", "cross"), (20, "blue", "star")):
        cells["colour"][cell] = LABELS["colour"].index(colour)
        cells["shape"][cell] = LABELS["shape"].index(shape)
    tokens = processor().tokenizer(" red star. red. blue")["input_ids"]
    named = [row.nonzero().flatten().tolist() for row in packer.name(tokens, cells)]
    assert named == [[3, 9], [3], [], [3, 9], [], [20]]


def test_lookup_loss_is_the_attention_to_named_cells(packer):
    batch = packer.pack([generate(3, "chart")])
    start = packer.image_start
    attention = torch.zeros(1, 4, 288, 288)
    attention[:, :2, :, start : start + 64] = batch.named / batch.named.sum(-1, keepdim=True).clamp_min(1)
    assert float(train.lookup_loss(attention, batch, start)) == pytest.approx(0.0, abs=1e-5)
    assert float(train.lookup_loss(attention / 2, batch, start)) == pytest.approx(math.log(2), abs=1e-5)


def test_batches_use_every_seed_once_and_follow_the_weights():
    stream = batches(0, 40, {kind: 0.0 for kind in KINDS if kind != "sign"})
    first, second = next(stream), next(stream)
    assert [s.seed for s in first + second] == list(range(80))
    assert {s.kind for s in first} == {"sign"}


def test_recipe_runs_resumes_and_ships(small, tmp_path, monkeypatch, capsys):
    processor().save_pretrained(tmp_path / "tokenizer")
    options = ["--output", str(tmp_path), "--tower_steps", "2", "--no_compile"]
    monkeypatch.setattr(train, "batches", lambda start, size, weights=None: batches(start, 2, weights))
    for steps in (1, 2):
        monkeypatch.setattr(sys, "argv", ["recipe", "drafter", *options, "--language_steps", str(steps)])
        recipe.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if "/" in line] == [
        ["tower", "2/2"],
        ["language", "1/1"],
        ["language", "2/2"],
    ]
    monkeypatch.setattr(train.Trainer, "run", lambda self, *args: None)
    more = ["--output", str(tmp_path / "more"), "--init", str(tmp_path / "drafter")]
    monkeypatch.setattr(sys, "argv", ["recipe", "drafter", *options, *more])
    recipe.main()
    first, again = (load_file(tmp_path / name / "model.safetensors") for name in ("drafter", "more/drafter"))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    ship.ship(tmp_path / "drafter", tmp_path / "plain")
    drafter = load_drafter(str(tmp_path / "plain"), selector="routed", layout="suffix", num_routed=4)
    save_drafter(drafter, tmp_path / "routed", stage="kd")
    ship.ship(tmp_path / "routed", tmp_path / "half")
    again = load_drafter(str(tmp_path / "half"))
    assert (again.selector, again.layout, again.num_routed) == ("routed", "suffix", 4)
    assert load_backbone(str(tmp_path / "half"), dtype="bfloat16").dtype == torch.bfloat16
    table = evaluate.exact_match(str(tmp_path / "plain"), num_prompts=6)
    assert set(table) == {*KINDS, "all"}


def test_a_drafter_needs_the_tokenizer_of_its_verifier(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["recipe", "drafter", "--output", str(tmp_path)])
    with pytest.raises(FileNotFoundError, match="Train the verifier"):
        recipe.main()


def test_gradients_are_averaged_over_processes(monkeypatch):
    layer = torch.nn.Linear(2, 1)
    layer(torch.ones(1, 2)).backward()
    monkeypatch.setattr(train.dist, "all_reduce", lambda flat: flat.mul_(4))
    train.average_gradients(layer, 2)
    assert layer.weight.grad.tolist() == [[2.0, 2.0]]


def test_learning_rate_rises_stays_and_falls():
    assert train.learning_rate(0, 1000) == pytest.approx(0.01)
    assert train.learning_rate(400, 1000) == 1.0
    assert train.learning_rate(750, 1000) == pytest.approx(0.5)
