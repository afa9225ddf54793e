"""What learns, what stays, in which mode, and what a checkpoint holds."""

from dataclasses import replace

import pytest
import torch
from helpers import prompts, save_pair
from lightning.pytorch import Callback, Trainer
from standins import save_standin
from torch.utils.data import DataLoader

from data_modules.collate import Batch, Example
from tiger.backbones import loading
from tiger.drafting.lora import Lora
from tiger.drafting.saving import load_drafter
from tiger.training import AcceptanceAlignment, KDWarmStart
from tiger.training import base as training_base

TASKS = {"kd": KDWarmStart, "align": AcceptanceAlignment}
LORA = Lora(rank=4, alpha=8)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder)
    return folder / "verifier", folder / "drafter"


def make(pair, kind, **options):
    torch.manual_seed(0)
    settings = {"num_anchors": 2, "block_size": 4, "num_routed": 6, "max_new_tokens": 6} | options
    return TASKS[kind](verifier=str(pair[0]), drafter=str(pair[1]), **settings)


def built(pair, kind, **options):
    task = make(pair, kind, **options)
    task.configure_model()
    task.log = lambda *args, **kwargs: None
    return task.train()


def examples(count=3, images=True):
    generator = torch.Generator().manual_seed(0)
    chosen = [p for p in prompts(9) if bool(p.images) == images][:count]
    return [Example(p, torch.randint(10, 400, (9,), generator=generator), "x", "x") for p in chosen]


class Modes(Callback):
    """Writes down the modes at each step; flips the task to eval and back as callbacks do."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        task.eval()
        task.train()
        self.seen.append((task.drafter.training, any(m.training for m in task.verifier.modules())))


def fit(task, folder, *callbacks, **options):
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=1,
        val_check_interval=1,
        **{"max_steps": 3, "max_epochs": 2} | options,
    )
    loader = DataLoader(examples(4), batch_size=2, collate_fn=Batch)
    trainer.fit(task, loader, loader)
    return trainer


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("kind", TASKS)
def test_a_fit_trains_the_drafter_alone_in_the_right_modes(pair, kind, lora, tmp_path):
    torch.set_grad_enabled(True)
    task, modes = make(pair, kind, lora=lora), Modes()
    task.configure_model()
    before = {name: p.detach().clone() for name, p in task.named_parameters()}
    trainer = fit(task, tmp_path, modes)
    assert trainer.global_step == 3
    assert modes.seen == [(True, False)] * 3
    changed = {name for name, p in task.named_parameters() if not torch.equal(p, before[name])}
    learning = {name for name, p in task.named_parameters() if p.requires_grad}
    assert changed <= learning
    assert any(".router." in name for name in changed)
    assert any((".lora_A" if lora else "language_model") in name for name in changed)
    assert not any("visual" in name or name.startswith("verifier.") for name in learning)
    assert all(p.grad is None for name, p in task.named_parameters() if name not in learning)
    owned = [id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in task.parameters() if p.requires_grad)


@pytest.mark.parametrize("images", [True, False], ids=["images", "text only"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("kind", TASKS)
def test_every_trained_weight_has_a_gradient_in_every_step(pair, kind, lora, images):
    """DDP waits for each of them, unless it is told to search for those that are missing."""
    task = built(pair, kind, lora=lora)
    task.training_step(Batch(examples(images=images)), 0).backward()
    missing = [name for name, p in task.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing


@pytest.mark.parametrize("images", [True, False], ids=["images", "text only"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_next"])
def test_every_weight_of_a_learning_tower_has_a_gradient(family, images, tmp_path):
    """Vision layers behind the one that is read stay frozen."""
    folders = [save_standin(family, tmp_path / role, role) for role in ("verifier", "drafter")]
    task = built(folders, "kd", train_vision=True)
    known = [replace(e, response=e.response % 200) for e in examples(2, images)]
    task.training_step(Batch(known), 0).backward()
    tower = {id(p) for p in task.drafter.backbone.vision_parameters()}
    learning = {name: p for name, p in task.named_parameters() if p.requires_grad}
    assert tower & {id(p) for p in learning.values()}
    assert [name for name, p in learning.items() if p.grad is None] == []
    still = {name for name, p in task.drafter.backbone.named_parameters() if not p.requires_grad}
    assert all(".layers.2." in name or "post_layernorm" in name for name in still)
    assert bool(still) == (family == "llava_next")


@pytest.mark.parametrize("train_vision", [False, True])
def test_the_vision_tower_learns_if_asked_to(pair, train_vision):
    task = built(pair, "kd", train_vision=train_vision, lora=LORA)
    tower = task.drafter.backbone.model.model.visual
    assert {p.requires_grad for p in tower.parameters()} == {train_vision}
    assert any(".visual." in name for name in task.state_dict()) == train_vision


def test_the_drafter_trains_although_transformers_loads_for_evaluation(pair):
    assert not load_drafter(str(pair[1])).training
    assert all(module.training for module in built(pair, "kd").drafter.modules())


def test_weights_keep_their_types(pair):
    task = built(pair, "align", verifier_dtype="bfloat16", lora=LORA)
    assert {p.dtype for p in task.verifier.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in task.drafter.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_alignment_refuses_pure_half_precision(pair, precision, tmp_path):
    with pytest.raises(ValueError, match=f"precision {precision} loses updates"):
        fit(make(pair, "align"), tmp_path, precision=precision)


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("kind", TASKS)
def test_a_checkpoint_holds_what_is_trained(pair, kind, lora):
    task = built(pair, kind, lora=lora)
    names = set(task.state_dict())
    assert names == {n for n, p in task.named_parameters(remove_duplicate=False) if p.requires_grad}
    assert any(".router." in name for name in names)
    assert not any(part in name for name in names for part in ("verifier.", "visual", "_reference"))
    assert all(".lora_" in name or ".router." in name for name in names) == (lora is not None)
    twin = built(pair, kind, lora=lora)
    with torch.no_grad():
        for parameter in task.drafter.parameters():
            parameter.add_(0.01 * parameter.requires_grad)
    twin.load_state_dict(task.state_dict())
    own = twin.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in task.state_dict().items())
    other = built(pair, kind, lora=None if lora else LORA)
    with pytest.raises(ValueError, match="lora that the checkpoint was trained with"):
        other.load_state_dict(task.state_dict())


def stage_one(pair, folder, **options):
    """A KD task with trained adapters, and its checkpoint."""
    task = built(pair, "kd", **options)
    with torch.no_grad():
        for name, parameter in task.drafter.named_parameters():
            if "lora_B" in name or name.startswith("router."):
                parameter.normal_(std=0.2)
    checkpoint = {"state_dict": task.state_dict()}
    task.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, folder / "kd.ckpt")
    return task, str(folder / "kd.ckpt")


@pytest.mark.parametrize("lora", [None, LORA, Lora(rank=2, targets=["q_proj"])])
def test_stage_two_starts_as_what_stage_one_ended_with(pair, tmp_path, lora):
    first, checkpoint = stage_one(pair, tmp_path, lora=LORA)
    second = built(pair, "align", beta=1.0, lora=lora, init_from=checkpoint)
    seen = {}
    second.log = lambda name, value, **kwargs: seen.update({name: float(value)})
    texts = [task.texts(examples()) for task in (first, second)]
    torch.testing.assert_close(texts[0].hidden, texts[1].hidden, atol=1e-4, rtol=1e-4)
    plain = built(pair, "kd").texts(examples())
    assert (plain.hidden - texts[0].hidden).abs().max() > 0.1
    assert torch.equal(first.drafter.router.query.weight, second.drafter.router.query.weight)
    second.training_step(Batch(examples()), 0)
    assert seen["reward/kl"] == pytest.approx(0.0, abs=1e-5)


def test_the_reference_of_adapters_is_no_second_copy(pair, tmp_path):
    checkpoint = stage_one(pair, tmp_path, lora=LORA)[1]
    task = built(pair, "align", beta=1.0, lora=LORA, init_from=checkpoint)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (task, task.verifier, task.drafter)]
    assert sizes[0] == sizes[1] + sizes[2]
    adapters = sum(p.numel() for name, p in task.drafter.named_parameters() if ".lora_" in name)
    plain = sum(p.numel() for p in load_drafter(str(pair[1])).parameters())
    assert sizes[2] == plain + adapters
    full = built(pair, "align", beta=1.0)
    assert sum(p.numel() for p in full.parameters()) == sizes[1] + 2 * plain


def test_the_divergence_of_adapters_grows_with_their_training(pair):
    task = built(pair, "align", beta=1.0, lora=LORA, guidance_weight=0.0)
    seen = []
    task.log = lambda name, value, **kwargs: seen.append(float(value)) if name == "reward/kl" else None
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=1e-2)
    for index in range(4):
        task.training_step(Batch(examples()), index).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen[0] == pytest.approx(0.0, abs=1e-6)
    assert seen[-1] > 1e-4


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("kind", TASKS)
def test_gradient_checkpointing_changes_no_gradient(pair, kind, lora):
    tasks = [built(pair, kind, lora=lora, gradient_checkpointing=flag) for flag in (False, True)]
    losses = [task.training_step(Batch(examples()), 0) for task in tasks]
    assert losses[0] == losses[1]
    for loss in losses:
        loss.backward()
    for (name, left), right in zip(
        tasks[0].drafter.named_parameters(), tasks[1].drafter.parameters(), strict=True
    ):
        if left.requires_grad:
            torch.testing.assert_close(left.grad, right.grad, atol=1e-6, rtol=1e-4, msg=name)


def test_adapters_with_dropout_are_refused_in_alignment(pair):
    make(pair, "kd", lora=Lora(dropout=0.1))
    with pytest.raises(ValueError, match=r"lora\.dropout is 0\.1"):
        make(pair, "align", lora=Lora(dropout=0.1))


def test_the_verifier_is_quantized_and_the_drafter_is_not(pair, monkeypatch):
    asked = []

    def load(name, dtype="float32", attention="sdpa", quantization=None):
        asked.append((name, quantization))
        return loading.load_backbone(name, dtype, attention)

    monkeypatch.setattr(training_base, "load_backbone", load)
    built(pair, "kd", verifier_quantization="4bit")
    assert asked == [(str(pair[0]), "4bit")]
