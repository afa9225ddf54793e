"""The plan against torch's own accounting: the profiler's allocations and the flop counter."""

from dataclasses import replace

import pytest
import torch
from helpers import prompts
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from data_modules.collate import Batch, Example
from tiger.backbones.checkpointing import checkpoint_layers
from tiger.backbones.loading import load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.verifier import Verifier
from tiger.drafting.lora import Lora
from tiger.drafting.saving import load_drafter
from tiger.evaluation.prompts import load_prompts
from tiger.planning import flops, memory
from tiger.planning.configs import load_config
from tiger.planning.plan import (
    LARGEST,
    USABLE,
    Stage,
    decoding_memory,
    fitting,
    largest,
    training_memory,
    work_per_pass,
)
from tiger.planning.report import fitting_line, parse_bytes
from tiger.planning.shapes import adapter_parameters, shape_of
from tiger.planning.workload import Pass, Workload
from tiger.training import AcceptanceAlignment, KDWarmStart, acceptance_alignment, losses
from tiger.training.planning import optimizer_states
from tiger.training.rollouts import roll_out
from tiger.training.teacher_cache import CacheSettings, condense

VERIFIER, DRAFTER = (shape_of(load_config(name)) for name in ("tiny/verifier", "tiny/vanilla"))
TASKS = {"kd": KDWarmStart, "align": AcceptanceAlignment}
FIXED = ("weights", "gradients", "optimizer")
KEPT = 16


def training(kind, size, answer, **options):
    """A task after its first step, a batch, and how the plan sees them."""
    task = TASKS[kind](verifier="tiny/verifier", drafter="tiny/vanilla", **options)
    task.configure_model()
    task.log = lambda *args, **kwargs: None
    task.train()
    task.verifier.eos_ids = (-1,)  # a plan is for blocks that do not end before their last token
    questions = load_prompts("synthetic", size)
    responses = torch.randint(10, 400, (size, answer), generator=torch.Generator().manual_seed(0))
    batch = Batch([Example(*pair, "x", "x") for pair in zip(questions, responses, strict=True)])
    if task.options.get("teacher_cache"):
        keep_lessons(task, batch)
    optimizer = task.configure_optimizers()["optimizer"]
    task.training_step(batch, 0).backward()
    optimizer.step()
    entries = [task.verifier.prepare(question) for question in questions]
    work = Workload(
        batch=size,
        prompt_tokens=max(int((~entry.visual).sum()) for entry in entries),
        visual_tokens=max(int(entry.visual.sum()) for entry in entries),
        answer_tokens=answer,
        num_anchors=task.options.num_anchors,
        group=task.options.get("group_size", 1),
        block_size=task.block_size,
        num_routed=task.options.num_routed,
        layout=task.options.layout,
        routed=task.options.selector == "routed",
        rollout_chunk=task.options.get("rollout_chunk"),
    )
    stage = Stage(
        align=kind == "align",
        reference=bool(task.options.get("beta")),
        compared=kind == "align" and task.compares,
        verifier_width=4,
        mixed=False,
        fused=False,
        foreach=False,
        guidance_layers=task.options.guidance_layers if task.options.guidance_weight else 0,
        train_vision=task.options.train_vision,
        adapters=adapter_parameters(load_config("tiny/vanilla"), task.lora) if task.lora else None,
        recompute=task.options.gradient_checkpointing,
        top_k=KEPT if task.options.get("teacher_cache") else None,
    )
    return task, batch, optimizer, work, stage


def keep_lessons(task, batch):
    """Gives a task lessons as a teacher cache holds them; the verifier then has nothing to do."""
    settings = CacheSettings("", "", "", 1.0, KEPT, (4, 2.0), len(batch), 8)
    lessons = task.teacher.read([e.prompt for e in batch], [e.response for e in batch])
    with torch.no_grad():
        kept = {
            example.prompt.id: condense(lesson, task.verifier.logits(lesson.hidden), settings)
            for example, lesson in zip(batch, lessons, strict=True)
        }
    task.cache = lambda name, device: kept[name]
    del task.teacher


@pytest.fixture(autouse=True)
def _no_block_fails(monkeypatch):
    """A plan is for rollouts that go on to the end of their blocks."""

    def rolled(sampler, judge, uniform, test, chunk):
        with record_function("rollouts"):
            return roll_out(sampler, judge, uniform - 2 if chunk else uniform, test, chunk)

    monkeypatch.setattr(acceptance_alignment, "roll_out", rolled)


def step_peak(run, within=None):
    """Largest number of bytes that a function has allocated at once, in all or within a named part of it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    events = list(record.profiler.kineto_results.events())
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == within]
    first, last = spans[0] if within else (0, float("inf"))
    total = peak = 0
    for time, size in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        total += size
        peak = max(peak, total) if first <= time <= last else peak
    return peak


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


NOISY = {"reward": "accepted_prefix"}  # which lets rollouts stop early
SETTINGS = [
    ("kd", 4, 60, {}),
    ("kd", 8, 30, {"num_anchors": 2}),
    ("kd", 2, 90, {"block_size": 16, "num_anchors": 6, "guidance_weight": 0.0}),
    ("kd", 4, 60, {"layout": "inline"}),
    ("kd", 4, 60, {"train_vision": True}),
    ("kd", 4, 60, {"lora": Lora(rank=8)}),
    ("kd", 4, 60, {"gradient_checkpointing": True}),
    ("align", 4, 60, {}),
    ("align", 4, 60, {"lora": Lora(rank=8)}),
    ("align", 4, 60, {"beta": 0.0}),
    ("align", 4, 60, {"objective": "overlap", "kd_weight": 1.0}),
    ("align", 2, 90, {"group_size": 8, "block_size": 16, "num_anchors": 2}),
    ("align", 2, 60, {"rollout_chunk": 4, "group_size": 8, "block_size": 16, **NOISY}),
    ("align", 4, 60, {"layout": "inline", "group_size": 2}),
    ("kd", 4, 60, {"teacher_cache": "kept"}),
]


@pytest.mark.parametrize(("kind", "size", "answer", "options"), SETTINGS)
def test_training_memory_is_what_torch_allocates(kind, size, answer, options):
    task, batch, optimizer, work, stage = training(kind, size, answer, **options)
    found = training_memory(VERIFIER, DRAFTER, work, stage)
    parameters = list(task.parameters())
    gradients = bytes_of(p.grad for p in parameters if p.grad is not None)
    states = bytes_of(value for state in optimizer.state.values() for value in state.values())
    drafter = bytes_of(parameters) - bytes_of(task.verifier.parameters())
    assert found.verifier["weights"] == bytes_of(task.verifier.parameters())
    assert found.drafter["weights"] == pytest.approx(drafter, rel=0.01)
    assert found.drafter["gradients"] == pytest.approx(gradients, rel=0.01)
    assert found.drafter["optimizer"] == pytest.approx(states, rel=0.01)

    def step():
        loss = task.training_step(batch, 1)
        optimizer.zero_grad()
        loss.backward()

    fixed = bytes_of(parameters) + gradients + states
    peak = step_peak(step)
    assert found.peak == pytest.approx(fixed + peak, rel=0.15)
    assert found.peak - fixed == pytest.approx(peak, rel=0.15)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_size": 8, "block_size": 16, "beta": 0.0},
        {"group_size": 8, "block_size": 16, "rollout_chunk": 4, **NOISY},
        {"group_size": 8, "block_size": 32, "rollout_chunk": 1, "num_anchors": 2, **NOISY},
    ],
)
def test_rollouts_take_what_is_planned(options):
    task, batch, _, work, stage = training("align", 2, 60, **options)
    found = training_memory(VERIFIER, DRAFTER, work, stage)
    fixed = sum(part[name] for part in (found.verifier, found.drafter) for name in FIXED)
    peak = step_peak(lambda: task.training_step(batch, 1), within="rollouts")
    assert found.phases["rollouts"] - fixed == pytest.approx(peak, rel=0.15)


def test_a_chunk_of_a_rollout_judges_fewer_tokens_at_once():
    work = Workload(1, 30, 64, 60, num_anchors=4, group=8, block_size=32)
    stage = Stage(align=True, reference=True)
    sizes = [
        training_memory(VERIFIER, DRAFTER, replace(work, rollout_chunk=chunk), stage)
        for chunk in (None, 32, 8, 1)
    ]
    rollouts = [found.phases["rollouts"] for found in sizes]
    assert rollouts[0] == rollouts[1] > rollouts[2] > rollouts[3]
    assert len({found.phases["loss"] for found in sizes}) == 1, "a plan is for blocks that do not stop"
    assert len({found.verifier["KV"] + found.drafter["KV"] for found in sizes}) == 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [("kd", {}), ("kd", {"teacher_cache": "kept"}), ("align", {}), ("align", {"beta": 0})],
)
def test_logits_of_a_chunk_are_planned(kind, options, monkeypatch):
    """Logits that come in many chunks, as they do with a large vocabulary."""
    monkeypatch.setitem(losses.chunked.__kwdefaults__, "max_elements", 2**15)
    monkeypatch.setattr(memory, "CHUNK", 2**15)
    task, batch, optimizer, work, stage = training(kind, 4, 60, num_anchors=8, **options)
    found = training_memory(VERIFIER, DRAFTER, work, stage)
    more = training_memory(VERIFIER, DRAFTER, replace(work, num_anchors=16), stage)
    assert more.drafter["logits"] == found.drafter["logits"]
    fixed = sum(part[name] for part in (found.verifier, found.drafter) for name in FIXED)

    def step():
        loss = task.training_step(batch, 1)
        optimizer.zero_grad()
        loss.backward()

    assert found.peak - fixed == pytest.approx(step_peak(step), rel=0.15)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.training_step(batch, 1).backward()
    planned = work_per_pass(VERIFIER, DRAFTER, work, stage)["training step"].flops
    assert planned == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_a_teacher_cache_spares_the_verifiers_passes_and_not_its_weights():
    work = Workload(1, 64, 1024, 256, num_anchors=4, block_size=32)
    live, kept = (training_memory(VERIFIER, DRAFTER, work, Stage(False, top_k=k)) for k in (None, 64))
    assert live.verifier["weights"] == kept.verifier["weights"]
    assert kept.verifier["activations"] == 256 * (65 * 4 + 64 * 8 + 1024 * 4)
    assert (kept.verifier["logits"], "verifier reads" in kept.phases) == (0, False)
    passes = [work_per_pass(VERIFIER, DRAFTER, work, Stage(False, top_k=k)) for k in (None, 64)]
    spared = passes[0]["training step"].flops - passes[1]["training step"].flops
    assert spared > flops.language_flops(VERIFIER, work.verifier_passes(False))
    assert passes[0]["autoregressive step"] == passes[1]["autoregressive step"]


@pytest.mark.parametrize("lora", [None, Lora(rank=8)], ids=["full", "lora"])
@pytest.mark.parametrize("kind", TASKS)
def test_training_memory_under_autocast(kind, lora):
    task, batch, optimizer, work, stage = training(kind, 4, 60, lora=lora)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.training_step(batch, 1)
        optimizer.zero_grad()
        loss.backward()

    found = training_memory(VERIFIER, DRAFTER, work, replace(stage, mixed=True))
    fixed = bytes_of(task.parameters()) + 3 * found.drafter["gradients"]
    assert found.peak - fixed == pytest.approx(step_peak(step), rel=0.15)


@pytest.mark.parametrize(("kind", "size", "answer", "options"), SETTINGS)
def test_training_flops_are_those_of_the_flop_counter(kind, size, answer, options):
    task, batch, _, work, stage = training(kind, size, answer, **options)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.training_step(batch, 1).backward()
    planned = work_per_pass(VERIFIER, DRAFTER, work, stage)["training step"].flops
    assert planned == pytest.approx(counter.get_total_flops(), rel=0.05)


@pytest.fixture(scope="module")
def pair():
    return load_backbone("tiny/verifier"), load_drafter("tiny/tiger")


@pytest.mark.parametrize("count", [1, 3])
def test_decoding_caches_are_as_large_as_planned(pair, count):
    verifier, drafter = pair
    requests = load_prompts("synthetic", count)
    entries = [verifier.prepare(request) for request in requests]
    work = Workload(count, max(int((~e.visual).sum()) for e in entries), 64, answer_tokens=20, block_size=8)
    found = decoding_memory(VERIFIER, DRAFTER, work, Stage(align=False, verifier_width=4))
    reserve = 20 + 8 + 1
    with torch.inference_mode():
        state, _ = Verifier(verifier).prefill(entries, reserve)
        text = drafter.begin(requests, reserve, Sampling(), []).text
    for part, cache in ((found.verifier, state.cache), (found.drafter, text.cache)):
        assert part["KV"] == bytes_of(slab for layer in cache.layers for slab in (layer.keys, layer.values))
    assert found.verifier["weights"] == bytes_of(verifier.parameters())
    assert found.drafter["weights"] == bytes_of(drafter.parameters())


@pytest.mark.parametrize(("queries", "past"), [(1, 90), (9, 90)])
def test_work_of_decoding_passes(pair, queries, past):
    verifier, drafter = pair
    for backbone, shape in ((verifier, VERIFIER), (drafter.backbone, DRAFTER)):
        cache = backbone.new_cache(2, past + queries)
        with torch.inference_mode():
            positions = torch.arange(past + queries).expand(backbone.num_axes, 2, -1)
            embeddings = torch.randn(2, past + queries, backbone.hidden_size)
            backbone.run(embeddings[:, :past], positions[..., :past], cache.mask(past), cache)
            cache.commit([past, past])
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                mask = cache.mask(queries)
                hidden = backbone.run(embeddings[:, past:], positions[..., past:], mask, cache)
                backbone.logits(hidden)
        planned = flops.forward_flops(shape, 2, queries, past + queries)
        assert planned == pytest.approx(counter.get_total_flops(), rel=0.05)
        read = bytes_of([m.weight for m in backbone.model.modules() if isinstance(m, torch.nn.Linear)])
        tower = bytes_of(
            [m.weight for m in backbone.model.model.visual.modules() if isinstance(m, torch.nn.Linear)]
        )
        keys = bytes_of(slab for layer in cache.layers for slab in (layer.keys, layer.values))
        assert flops.forward_bytes(shape, 2, past + queries, 4) == read - tower + keys


def test_work_of_images(pair):
    backbone = pair[0]
    entries = [backbone.prepare(prompt) for prompt in prompts(2)[:1]]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.inference_mode():
        backbone.encode(entries)
    planned = flops.vision_flops(VERIFIER, int(entries[0].visual.sum()), 1)
    assert planned == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_adapters_and_recomputation_save_memory():
    work = Workload(4, 30, 64, 60, num_anchors=4)
    full = training_memory(VERIFIER, DRAFTER, work, Stage(align=True, reference=True))
    small = training_memory(VERIFIER, DRAFTER, work, Stage(align=True, reference=True, adapters=5000))
    lean = training_memory(VERIFIER, DRAFTER, work, Stage(align=True, reference=True, recompute=True))
    assert small.drafter["gradients"] == (5000 + DRAFTER.router) * 4
    assert full.drafter["weights"] - small.drafter["weights"] == (
        (DRAFTER.parameters + DRAFTER.router - 5000) * 4  # no copy for the reference,
        + 2 * (DRAFTER.linear + DRAFTER.head)  # and none in half precision of weights that do not learn
    )
    assert lean.drafter["activations"] < 0.7 * full.drafter["activations"]
    plain, twice = (
        work_per_pass(VERIFIER, DRAFTER, work, Stage(align=False, recompute=flag))["training step"].flops
        for flag in (False, True)
    )
    assert twice - plain == flops.language_flops(DRAFTER, work.drafter_passes())


def test_recomputed_layers_keep_their_inputs():
    """Checkpointed layers of the real model, against the formula for them."""
    from tiger.planning.memory import activation_bytes, layer_bytes

    backbone = load_drafter("tiny/vanilla").backbone
    checkpoint_layers(backbone)
    embeddings = torch.randn(8, 150, backbone.hidden_size, requires_grad=True)
    positions = torch.arange(150).expand(backbone.num_axes, 8, -1)
    mask = torch.ones(150, 150, dtype=torch.bool).tril().expand(8, 1, -1, -1)
    peak = step_peak(lambda: backbone.run(embeddings, positions, mask).sum().backward())
    run = Pass(8, 150, 150)
    planned = activation_bytes(DRAFTER, [run], mixed=False, fused=True, recompute=True)
    planned += layer_bytes(DRAFTER, run, mixed=False, fused=True)
    weights = bytes_of(backbone.model.model.language_model.parameters())
    assert planned == pytest.approx(peak - weights, rel=0.25)


def test_the_largest_sizes_fit_and_one_more_does_not():
    work = Workload(1, 30, 64, 60, num_anchors=4, group=4)
    stage = Stage(align=True, reference=True)
    budget = 2**30
    sizes = fitting(VERIFIER, DRAFTER, work, stage, budget)
    for key, field in (("training batch", "batch"), ("group", "group")):
        at, above = (
            training_memory(VERIFIER, DRAFTER, replace(work, **{field: sizes[key] + more}), stage).peak
            for more in (0, 1)
        )
        assert at <= USABLE * budget < above
    assert set(sizes) == {"training batch", "group", "decoding batch"}
    assert "group" not in fitting(VERIFIER, DRAFTER, work, Stage(align=False), budget)
    assert largest(lambda size: size, 0) == 0
    assert largest(lambda size: 1, 2) == LARGEST
    assert "none" in fitting_line("1GiB", {"training batch": 0})
    assert "gradient_checkpointing" in fitting_line("1GiB", {"training batch": 0})


def test_sizes_of_cards():
    assert parse_bytes("80GiB") == 80 * 2**30
    assert parse_bytes(" 24 gb") == 24 * 10**9
    assert parse_bytes("1000") == 1000
    for text in ("much", "80TiB", "0GiB", "-1GiB", "1.2.3GB"):
        with pytest.raises(ValueError, match="give a size above 0 such as 80GiB"):
            parse_bytes(text)


def test_values_that_optimizers_keep():
    assert optimizer_states(torch.optim.AdamW) == 2
    assert optimizer_states(lambda p: torch.optim.SGD(p, lr=0.1)) == 0
    assert optimizer_states(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) == 1
