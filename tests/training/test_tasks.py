import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers import prompts, save_backbone, save_pair, tiny_backbone

from data_modules.collate import Batch, Example
from tiger.backbones import base as backbone_base
from tiger.backbones.base import assemble
from tiger.backbones.grids import Grid
from tiger.training import AcceptanceAlignment, KDWarmStart, acceptance_alignment
from tiger.training.block_attention import block_attention
from tiger.training.kd_warm_start import answer_blocks, teacher_rows
from tiger.training.rollouts import Rollouts, roll_out
from tiger.training.teacher import Teacher, resample

TASKS = {"kd": KDWarmStart, "align": AcceptanceAlignment}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder)
    save_backbone(tiny_backbone("verifier", 3, 1), folder / "deep")  # a drafter with deepstack features
    return folder / "verifier", folder / "drafter"


def task(pair, kind, **options):
    torch.manual_seed(0)
    verifier, drafter = pair
    settings = {"num_anchors": 2, "block_size": 4, "num_routed": 6} | options
    built = TASKS[kind](verifier=str(verifier), drafter=str(drafter), **settings)
    built.configure_model()
    built.log = lambda *args, **kwargs: None
    return built.train()


def batch(size=3, length=9):
    generator = torch.Generator().manual_seed(0)
    pick = [p for p in prompts(6) if p.images][:size]
    return Batch([Example(p, torch.randint(10, 400, (length,), generator=generator), "x", "x") for p in pick])


@pytest.mark.parametrize("layout", ["suffix", "inline"])
@pytest.mark.parametrize("kind", TASKS)
def test_the_stage_loss_alone_reaches_both_router_weights(pair, kind, layout):
    built = task(pair, kind, guidance_weight=0.0, layout=layout)
    built.training_step(batch(), 0).backward()
    assert built.drafter.router.query.weight.grad.norm() > 0
    assert built.drafter.router.key.weight.grad.norm() > 0


@pytest.mark.parametrize("images", [True, False], ids=["pictures", "text only"])
@pytest.mark.parametrize(
    ("layout", "selector"),
    [
        *((layout, name) for layout in ("suffix", "inline") for name in ("routed", "full", "random")),
        *(("suffix", name) for name in ("sparsevlm", "vispruner")),
    ],
)
@pytest.mark.parametrize("kind", TASKS)
def test_every_step_gives_every_weight_a_gradient(pair, kind, layout, selector, images):
    # Ranks would wait for one another otherwise: DDP runs without find_unused_parameters.
    options = {"layout": layout, "selector": selector, "guidance_weight": 0.0, "train_vision": True}
    built = task((pair[0], pair[0].parent / "deep"), kind, **options)
    assert built.drafter.backbone.model.config.vision_config.deepstack_visual_indexes
    examples = batch(2).examples
    if not images:
        examples = [replace(e, prompt=replace(e.prompt, images=())) for e in examples]
    loss = built.training_step(Batch(examples), 0)
    loss.backward()
    assert torch.isfinite(loss)
    trained = {name: p for name, p in built.named_parameters() if p.requires_grad}
    assert any(".visual." in name for name in trained)
    assert [name for name, p in trained.items() if p.grad is None] == []
    assert all(torch.isfinite(p.grad).all() for p in trained.values())


@pytest.mark.parametrize("kind", TASKS)
def test_random_routes_are_drawn_by_the_steps_own_generators(pair, kind, monkeypatch):
    module, seen = sys.modules[TASKS[kind].__module__], []
    routing = module.route
    monkeypatch.setattr(module, "route", lambda *args: seen.append(routing(*args)) or seen[-1])
    built, losses = task(pair, kind, selector="random"), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        losses.append(built.training_step(batch(), 0).detach())
    assert losses[0] == losses[1]
    torch.manual_seed(3)
    built.training_step(Batch(batch().examples[2:]), 0)  # as another rank would
    built.training_step(batch(), 1)
    first, again, alone, later = (routes.rows for routes in seen)
    assert torch.equal(first, again)
    assert torch.equal(alone[0], first[2])
    assert not torch.equal(later, first)
    assert not torch.equal(first[:, 0], first[:, 1]), "each anchor has a route of its own"


@pytest.mark.parametrize("kind", TASKS)
def test_without_guidance_the_verifiers_attention_is_not_computed(pair, kind, monkeypatch):
    built, recorded = task(pair, kind, guidance_weight=0.0), []
    record = backbone_base.record_attention
    monkeypatch.setattr(backbone_base, "record_attention", lambda *args: recorded.append(1) or record(*args))
    loss = built.training_step(batch(), 0)
    assert not recorded
    examples = batch().examples
    questions, answers = [e.prompt for e in examples], [e.response for e in examples]
    assert all(lesson.attention is None for lesson in built.teacher.read(questions, answers))
    built.teacher.guidance_layers = 4
    torch.testing.assert_close(built.training_step(batch(), 0), loss)
    assert recorded


def test_an_example_draws_the_same_in_every_batch(pair, monkeypatch):
    built, drawn = task(pair, "align"), []

    def noted(sampler, judge, tests, *options):
        rollouts = roll_out(sampler, judge, tests, *options)
        drawn.append((sampler.routes.anchors, rollouts.blocks, tests))
        return rollouts

    monkeypatch.setattr(acceptance_alignment, "roll_out", noted)
    examples = batch(3).examples
    for part in (examples, examples[1:]):
        built.training_step(Batch(part), 5)
    assert all(torch.equal(whole[1:], part) for whole, part in zip(*drawn, strict=True))
    assert not torch.equal(drawn[0][0], built.anchors(examples, built.generators(examples, 6)))


@pytest.mark.parametrize("kind", TASKS)
def test_the_verifier_stays_as_it_is(pair, kind):
    built = task(pair, kind)
    before = {name: value.clone() for name, value in built.verifier.state_dict().items()}
    optimizer = built.configure_optimizers()["optimizer"]
    built.training_step(batch(), 0).backward()
    optimizer.step()
    assert not built.verifier.training
    assert built.drafter.training
    assert all(torch.equal(value, before[name]) for name, value in built.verifier.state_dict().items())
    assert all(p.grad is None for p in built.verifier.parameters())
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert not owned & {id(p) for p in built.verifier.parameters()}
    assert not any(name.startswith("verifier.") for name in built.state_dict())


@pytest.mark.parametrize("kind", TASKS)
def test_a_step_is_a_function_of_seed_and_batch_index(pair, kind):
    losses = [
        task(pair, kind, seed=seed).training_step(batch(), index) for seed, index in ((0, 1), (0, 1), (1, 1))
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_kd_learns_a_batch(pair):
    built = task(pair, "kd", guidance_weight=0.0)
    optimizer = torch.optim.AdamW([p for p in built.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(25):
        loss = built.training_step(batch(), 0)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("objective", "rate"), [("overlap", 3e-3), ("policy", 3e-4)])
def test_alignment_raises_its_reward(pair, objective, rate):
    options = {"objective": objective, "guidance_weight": 0.0, "beta": 0.0, "remember": True}
    built = task(pair, "align", group_size=16, **options)
    earned = []
    built.log = lambda name, value, **kwargs: earned.append(float(value)) if name == "reward/mean" else None
    optimizer = torch.optim.AdamW([p for p in built.parameters() if p.requires_grad], lr=rate)
    for index in range(40):
        built.training_step(batch(), index).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():  # the same anchors as at first
        for index in range(10):
            built.training_step(batch(), index)
    assert sum(earned[-10:]) > 1.05 * sum(earned[:10])


def test_kd_in_alignment_counts_where_the_draft_is_still_alive(pair):
    chance = torch.tensor([1.0, 0.5, 0.4]).expand(1, 1, 2, 3)
    counts = torch.tensor([[True, True, True], [True, True, False]])[None, None]
    chosen, kd, tests = -torch.rand(3, 1, 1, 2, 3)
    rollouts = Rollouts(torch.zeros(1, 1, 2, 3).long(), counts, chance * counts, torch.zeros(1, 1, 2, 3, 4))
    terms = {"chosen": chosen * counts, "entropy": chosen, "kd": kd * counts}
    for chunk, reach in ((None, torch.tensor([1.0, 1.0, 0.5])), (2, torch.ones(3))):
        options = {"beta": 0.0, "reward": "accepted_prefix", "rollout_chunk": chunk}
        losses = [
            task(pair, "align", kd_weight=w, **options)._objective(rollouts, terms, -tests)
            for w in (0.0, 1.0)
        ]
        torch.testing.assert_close(losses[1] - losses[0], (kd * counts * reach).sum(-1).mean())


def test_alignment_learns_the_draft_temperature(pair):
    # The reward asks a copy of the verifier that drafts too boldly to be itself again.
    options = {"layout": "inline", "selector": "full", "block_size": 1, "group_size": 8, "num_anchors": 4}
    options |= {"guidance_weight": 0.0, "beta": 0.0, "objective": "overlap", "temperature_lr": 0.2}
    built = task((pair[1], pair[1]), "align", optimizer=partial(torch.optim.SGD, lr=0.0), **options)
    built.drafter.log_draft_temperature.data.fill_(-0.7)
    optimizer = built.configure_optimizers()["optimizer"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.2]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.0]
    for index in range(12):
        optimizer.zero_grad()
        built.training_step(batch(1), index).backward()
        optimizer.step()
    assert built.drafter.draft_temperature == pytest.approx(1.0, abs=0.2)
    assert any("draft_temperature" in name for name in built.state_dict())


@pytest.mark.parametrize(("kind", "options"), [("kd", {}), ("align", {"temperature_lr": 0.0})])
def test_the_draft_temperature_is_otherwise_left_alone(pair, kind, options):
    built = task(pair, kind, **options)
    assert len(built.configure_optimizers()["optimizer"].param_groups) == 1
    assert not any("draft_temperature" in name for name in built.state_dict())


def test_reference_divergence_is_zero_before_the_first_step(pair):
    built = task(pair, "align", beta=1.0)
    built.drafter.log_draft_temperature.data.fill_(-0.5)
    seen = []
    built.log = lambda name, value, **kwargs: seen.append(float(value)) if name == "reward/kl" else None
    built.training_step(batch(), 0)
    assert seen == [pytest.approx(0.0, abs=1e-4)]


def test_remembered_lessons_are_not_learnt_again(pair):
    built = task(pair, "kd", remember=True)
    calls = []
    read = built.teacher.read
    built.teacher.read = lambda *args: calls.append(1) or read(*args)
    first = built.training_step(batch(), 0)
    assert built.training_step(batch(), 0) == first
    assert len(calls) == 1


def test_teacher_judges_answers_and_blocks_like_a_plain_pass(pair):
    built = task(pair, "kd")
    teacher: Teacher = built.teacher
    examples = batch().examples
    questions, answers = [e.prompt for e in examples], [e.response for e in examples]
    anchors = torch.tensor([[1, 4], [0, 7], [3, 3]])
    blocks = torch.randint(10, 400, (3, 2, 2, 4))
    branches = teacher.branches(teacher.prefixes(questions, answers), anchors, 2)
    wanted = torch.ones(3, 4, 4, dtype=torch.bool)
    scored = branches.states(blocks.flatten(1, 2), 0, wanted).view(3, 2, 2, 4, -1)
    lessons = teacher.read(questions, answers)
    hidden = teacher_rows([lesson.hidden for lesson in lessons], anchors, 1)
    torch.testing.assert_close(hidden[:, :, 0], scored[:, :, 0, 0], atol=1e-4, rtol=1e-4)
    backbone = built.verifier
    for row, column, branch in ((0, 0, 1), (1, 1, 0), (2, 1, 1)):
        inputs = [backbone.prepare(questions[row])]
        ids = torch.cat([answers[row][: anchors[row, column] + 1], blocks[row, column, branch]])
        plain = backbone.run_assembled(
            assemble(
                inputs, backbone.encode(inputs), [backbone.embed(inputs[0].ids)], None, [backbone.embed(ids)]
            )
        )[0, -5:-1]
        torch.testing.assert_close(scored[row, column, branch], plain, atol=1e-4, rtol=1e-4)


def test_block_attention_averages_over_the_block(pair):
    built = task(pair, "kd")
    texts, lessons = built.texts(batch().examples), built.lessons(batch().examples)
    anchors = torch.tensor([[2, 7], [0, 8], [1, 1]])
    found = block_attention(lessons, texts, anchors, built.block_size)
    size = lessons[0].attention.shape[1]
    torch.testing.assert_close(found[0, 0, :size], lessons[0].attention[2:6].mean(0))
    torch.testing.assert_close(found[0, 1, :size], lessons[0].attention[7:9].mean(0))
    assert found[0, 0, size:].abs().max() == 0


def test_blocks_of_the_answer_end_with_it(pair):
    built = task(pair, "kd")
    texts, lessons = built.texts(batch().examples), built.lessons(batch().examples)
    blocks, valid = answer_blocks(
        texts.answers, [len(x.hidden) for x in lessons], torch.tensor([[6], [0], [7]]), 4
    )
    assert valid[:, 0].tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert torch.equal(blocks[0, 0, :2], batch().examples[0].response[7:9])


def test_attention_is_carried_to_another_grid():
    attention = torch.rand(3, 16)
    assert resample(attention, [Grid(1, 4, 4)], [Grid(1, 4, 4)]) is attention
    carried = resample(attention, [Grid(1, 4, 4)], [Grid(1, 2, 2)])
    torch.testing.assert_close(carried.sum(1), attention.sum(1))
    peak = torch.zeros(1, 16)
    peak[0, 15] = 1.0
    assert resample(peak, [Grid(1, 4, 4)], [Grid(1, 2, 2)]).argmax() == 3


def test_newline_tokens_neither_give_nor_get_guidance():
    source = [Grid(1, 2, 2), Grid(1, 4, 4, newlines=True, again=True)]
    attention = torch.rand(3, 4 + 20)
    newline = torch.zeros(24, dtype=torch.bool)
    newline[[8, 13, 18, 23]] = True
    same = resample(attention, source, source)
    torch.testing.assert_close(same, attention.masked_fill(newline, 0.0))
    goal = [Grid(1, 1, 1), Grid(1, 3, 2, newlines=True, again=True)]
    carried = resample(attention, source, goal)
    assert carried.shape == (3, 1 + 9)
    assert carried[:, [3, 6, 9]].abs().max() == 0
    torch.testing.assert_close(carried[:, 0], attention[:, :4].sum(1))
    torch.testing.assert_close(carried[:, 1:].sum(1), same[:, 4:].sum(1))
    peak = torch.zeros(1, 24)
    peak[0, 4 + 15] = 1.0  # first cell of the last row
    assert resample(peak, source, goal).argmax() == 1 + 2 * 3


def test_a_checkpoint_of_another_verifier_is_refused(pair, tmp_path):
    built, checkpoint = task(pair, "kd"), {}
    built.on_save_checkpoint(checkpoint)
    built.on_load_checkpoint(checkpoint)
    torch.save(checkpoint | {"state_dict": built.state_dict()}, tmp_path / "kd.ckpt")
    for dtype in ("bfloat16", "float16"):
        task(pair, "align", init_from=str(tmp_path / "kd.ckpt"), verifier_dtype=dtype)
    save_backbone(tiny_backbone("verifier", 5, 1), tmp_path / "other")  # the same shapes
    other = (tmp_path / "other", pair[1])
    with pytest.raises(ValueError, match="another pair: its drafter learnt from verifier"):
        task(other, "kd").on_load_checkpoint(checkpoint)
    with pytest.raises(ValueError, match="another pair: its drafter learnt from verifier"):
        task(other, "align", init_from=str(tmp_path / "kd.ckpt"))


def test_examples_without_a_name_cannot_be_remembered(pair):
    built = task(pair, "kd", remember=True)
    unnamed = Batch([replace(e, prompt=replace(e.prompt, id="")) for e in batch().examples])
    with pytest.raises(ValueError, match="remember needs prompts with an id"):
        built.training_step(unnamed, 0)


def test_guidance_options_reach_the_teacher(pair):
    teacher = task(pair, "align", guidance_layers=1, guidance_power=3.0).teacher
    assert (teacher.guidance_layers, teacher.guidance_power) == (1, 3.0)


def test_bad_options_are_refused(pair):
    with pytest.raises(ValueError, match="group_size is 1"):
        task(pair, "align", group_size=1)
    with pytest.raises(ValueError, match="temperature is 0"):
        task(pair, "align", temperature=0.0)
    with pytest.raises(ValueError, match="temperature_lr is -1"):
        task(pair, "align", temperature_lr=-1)
    with pytest.raises(ValueError, match="temperature_lr needs objective overlap"):
        task(pair, "align", temperature_lr=0.1)
    with pytest.raises(ValueError, match="guidance_layers is 0; take 1 or more"):
        KDWarmStart(guidance_layers=0)
    with pytest.raises(ValueError, match="block_size 0"):
        task(pair, "kd", block_size=0)
    with pytest.raises(ValueError, match="remember"):
        task(pair, "kd", remember=True, train_vision=True)
