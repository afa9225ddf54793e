"""Draft heads learn from the verifier's hidden states, by the same files and commands as drafters."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import hf_generate, hf_inputs, prompts, save_backbone, tiny_backbone
from linear_head import LinearHead

from data_modules.collate import Batch, Example
from tiger.backbones.base import assemble
from tiger.cli import main
from tiger.decoding.custom_generate import speculative_generate
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.methods import HEADS
from tiger.drafting.heads.saving import load_head, save_head
from tiger.training import DraftHeadDistillation, draft_head_distillation
from tiger.training.draft_vocabulary import frequent_ids
from tiger.training.losses import list_mle, soft_ce, tv
from tiger.training.supervision import check_supervision

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _linear(monkeypatch):
    monkeypatch.setitem(HEADS, "linear", LinearHead)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair") / "verifier"
    save_backbone(tiny_backbone("verifier", 0, 2), folder)
    return str(folder)


def task(verifier, **options):
    built = DraftHeadDistillation(verifier=verifier, **{"method": "linear", "block_size": 3} | options)
    built.configure_model()
    built.logged = {}
    built.log = lambda name, value, **kwargs: built.logged.update({name: float(value)})
    return built.train()


def examples(*lengths):
    generator = torch.Generator().manual_seed(0)
    asked = [p for p in prompts(6) if p.images][: len(lengths)]
    answers = [torch.randint(10, 400, (length,), generator=generator) for length in lengths]
    return [Example(p, answer, "x", "x") for p, answer in zip(asked, answers, strict=True)]


def plain(backbone, example, layer=None):
    """Final hidden states, embeddings and what enters a layer [P + R, D], by an ordinary pass."""
    inputs, seen = [backbone.prepare(example.prompt)], []
    answer = [backbone.embed(example.response)]
    batch = assemble(inputs, backbone.encode(inputs), [backbone.embed(inputs[0].ids)], None, answer)
    layers = backbone.model.get_decoder().layers
    with torch.no_grad():
        hook = layers[layer or 0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        hidden = backbone.run_assembled(batch)[0]
        hook.remove()
    return hidden, batch.embeddings[0], seen[0][0]


@pytest.mark.parametrize("layers", [(), (1,)])
def test_a_prediction_is_judged_where_the_verifier_predicts_the_same_token(verifier, layers):
    built = task(verifier, head={"layers": layers}, feature_weight=1.0, ce_weight=0.5)
    batch = examples(6, 3)
    found = built.judge(batch, 0)
    expected = []
    for example in batch:
        hidden, embeddings, entered = plain(built.verifier, example, 1)
        features, length = entered if layers else hidden, len(example.response)
        first = len(hidden) - length
        for root in range(length - 1):
            known = torch.cat([features[first + root - 1], embeddings[first + root]])
            for depth in range(min(3, length - 1 - root)):
                said, state = built.drafter.steps[depth](known), hidden[first + root + depth]
                q, p = (built.verifier.logits(x).log_softmax(-1) for x in (said, state))
                values = [-(p.exp() * q).sum(), -q[p.argmax()], F.smooth_l1_loss(said, state)]
                expected.append([*values, torch.tensor(float(depth))])
    expected = torch.stack([torch.stack(row) for row in expected])
    given = torch.cat([found.losses, found.depths[:, None]], 1)
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)
    assert found.counts.all()


def test_loss_is_the_weighted_mean_and_its_parts_are_logged(verifier):
    built = task(verifier, soft_ce_weight=0.25, tv_weight=20.0, list_mle_weight=0.1, decay=0.5)
    batch = examples(6, 3)
    loss = built.training_step(Batch(batch), 0)
    judged = built.judge(batch, 0)
    factors = 0.5**judged.depths
    means = (judged.losses * factors[:, None]).sum(0) / factors.sum()
    assert list(built.weights) == ["soft_ce", "tv", "list_mle"]
    assert loss.item() == pytest.approx(float(means @ torch.tensor([0.25, 20.0, 0.1])), rel=1e-5)
    assert built.logged["loss/total"] == loss.item()
    assert [built.logged[f"loss/{name}"] for name in built.weights] == pytest.approx(means.tolist(), rel=1e-5)
    tokens = sum(len(built.verifier.prepare(e.prompt).ids) + len(e.response) - 1 for e in batch)
    assert built.logged["loss/supervised_share"] == pytest.approx((5 + 2) / tokens)


def test_the_expected_prefix_is_that_of_drafting_along_the_answer(verifier):
    """Drafts drawn from the head, tested by the verifier; every accepted one is on the answer."""
    built = task(verifier, soft_ce_weight=0.0, prefix_weight=2.0)
    batch = examples(6, 3)
    loss = built.training_step(Batch(batch), 0)
    expected = []
    for lesson, example in zip(built.head_lessons(batch), batch, strict=True):
        roots = torch.arange(lesson.start, lesson.start + 5)[None]
        hidden = built.drafter.unroll(
            built.drafter.text([lesson.row]), roots.clamp_max(len(lesson.row.tokens) - 1), 3
        )
        for root in range(5):
            total, alive = 0.0, 1.0
            for depth in range(3):
                place = root + depth
                if place >= len(example.response) - 1:
                    break
                q = built.drafter.score(hidden[0, root, depth]).softmax(-1)
                p = built.verifier.logits(lesson.hidden[place]).softmax(-1)
                alive = alive * float(torch.minimum(p, q).sum())
                total += alive
            expected.append(total)
    mean = sum(expected) / len(expected)
    assert mean > 0
    assert built.logged["reward/expected_prefix"] == pytest.approx(mean, rel=1e-4)
    assert loss.item() == pytest.approx(-2.0 * mean, rel=1e-4)


def test_losses_of_heads():
    p, q = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(soft_ce(p, q), F.cross_entropy(q, p.softmax(-1), reduction="none"))
    torch.testing.assert_close(20 * tv(p, q), 10 * (p.softmax(-1) - q.softmax(-1)).abs().sum(-1))
    ranked = q.gather(1, p.argsort(descending=True)[:, :10])
    by_hand = sum(ranked[:, i:].logsumexp(1) - ranked[:, i] for i in range(10))
    torch.testing.assert_close(list_mle(p, q), by_hand)


def test_only_ids_of_the_draft_vocabulary_count(verifier):
    whole = task(verifier)
    batch = examples(6, 3)
    hidden = torch.cat([lesson.hidden[:-1] for lesson in whole.head_lessons(batch)])
    said = whole.verifier.logits(hidden).argmax(-1)
    ids = sorted({*range(50), int(said[0])} - {int(said[1])})
    built = task(verifier, head={"ids": ids}, depth=1)
    judged = built.judge(batch, 0)
    kept = torch.isin(said, torch.tensor(ids))
    assert 0 < kept.sum() < len(kept)
    assert torch.equal(judged.counts > 0, kept)
    assert int(torch.cat(judged.marks).sum()) == int(kept.sum())
    student = []  # the same predictions, by hand
    for lesson, length in zip(built.head_lessons(batch), (6, 3), strict=True):
        roots = torch.arange(lesson.start, lesson.start + length - 1)[None]
        student.append(built.drafter.unroll(built.drafter.text([lesson.row]), roots, 1)[0, :, 0])
    targets = built.verifier.logits(hidden)[:, ids].softmax(-1)
    expected = F.cross_entropy(built.drafter.score(torch.cat(student)), targets, reduction="none")
    torch.testing.assert_close(judged.losses[:, 0], expected, atol=1e-4, rtol=1e-4)
    loss = built.training_step(Batch(batch), 0)
    torch.testing.assert_close(loss, expected[kept].mean(), atol=1e-4, rtol=1e-4)


def test_a_head_learns_and_the_verifier_stays(verifier):
    built = task(verifier, remember=True, soft_ce_weight=0.0, tv_weight=0.1, feature_weight=1.0)
    before = {name: value.clone() for name, value in built.verifier.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in built.parameters() if p.requires_grad], lr=1e-2)
    batch, losses = Batch(examples(8, 5)), []
    for _ in range(20):
        loss = built.training_step(batch, 0)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert not built.verifier.training
    assert all(torch.equal(value, before[name]) for name, value in built.verifier.state_dict().items())
    assert set(built.state_dict()) == {
        f"_drafter.steps.{i}.{part}" for i in range(4) for part in ("weight", "bias")
    }
    built.on_before_optimizer_step(optimizer)
    assert built.logged["optimizer/gradient_drafter"] > 0


def test_lessons_are_read_once_if_remembered(verifier, monkeypatch):
    calls, read = [], draft_head_distillation.read_head_lessons
    monkeypatch.setattr(
        draft_head_distillation, "read_head_lessons", lambda *args: calls.append(1) or read(*args)
    )
    for remember, count in ((True, 1), (False, 2)):
        built = task(verifier, remember=remember)
        losses = [built.training_step(Batch(examples(6, 3)), 0).item() for _ in range(2)]
        assert losses[0] == losses[1]
        assert len(calls) == count
        calls.clear()


def test_noise_and_roots_are_those_of_the_example(verifier):
    built = task(verifier, noise=0.2, num_anchors=2)
    batch = examples(9, 7)
    generators = [built.generators(part, 4) for part in (batch, batch[1:])]
    whole, alone = (built.anchors(part, g) for part, g in zip((batch, batch[1:]), generators, strict=True))
    assert whole.shape == (2, 2)
    assert torch.equal(whole[1:], alone)
    row = built.head_lessons(batch)[1].row
    first, second = (built.noised(row, g[-1]) for g in generators)
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.embeddings, row.embeddings)
    moved, width = (first.features - row.features).abs(), 0.2 * 512 / len(row.features)
    assert 0.45 * width < moved.max() <= 0.501 * width


def test_batches_without_or_with_nothing_but_supervision_are_refused(verifier):
    with pytest.raises(ValueError, match=r"No token of the batch is supervised.*data preview"):
        task(verifier).training_step(Batch(examples(1, 1)), 0)
    with pytest.raises(ValueError, match="All tokens of the batch are supervised"):
        check_supervision(torch.ones(4, dtype=torch.bool))
    check_supervision(torch.tensor([True, False]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft_ce_weight": 0.0}, "one or more above"),
        ({"tv_weight": -1.0}, "none below 0"),
        ({"depth": 0}, "depth 0 must be 1 or more"),
        ({"decay": 0.0}, "decay 0.0 above 0"),
        ({"noise": -0.1}, "noise -0.1 not below 0"),
        ({"num_anchors": 0}, "num_anchors 0 must be 1 or more"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DraftHeadDistillation(method="linear", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "medussa"}, "no draft head 'medussa'"),
        ({"head": {"lenght": 2}}, "Head 'linear' cannot take"),
        ({"head": {"layers": [7]}}, "verifier has layers 0 to 1"),
    ],
)
def test_heads_that_cannot_be_built_are_named(verifier, options, message):
    with pytest.raises(ValueError, match=message):
        task(verifier, **options)


def test_shards_are_refused(verifier):
    with pytest.raises(ValueError, match="use the ddp strategy"):
        task(verifier).shard_models()


def test_training_starts_from_a_saved_head(verifier, tmp_path):
    trained = task(verifier)
    trained.drafter.steps[0].weight.data.fill_(0.01)
    save_head(trained.drafter, tmp_path)
    again = task(verifier, init_from=str(tmp_path))
    assert torch.equal(again.drafter.steps[0].weight, trained.drafter.steps[0].weight)
    with pytest.raises(ValueError, match="head of the same method and options"):
        task(verifier, head={"length": 5}, init_from=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"holds no head\.safetensors"):
        task(verifier, init_from=str(tmp_path / "none"))


def words(verifier, folder, *extra):
    return [
        "--config", str(ROOT / "configs/experiment/tiny_eagle2.yaml"),
        f"--model.init_args.verifier={verifier}", "--model.init_args.method=linear",
        "--model.init_args.head=null",
        "--model.init_args.verifier_dtype=float32",
        "--model.init_args.max_new_tokens=6", "--data.init_args.max_new_tokens=6",
        f"--data.init_args.cache_dir={folder / 'cache'}", "--data.init_args.num_train=12",
        "--data.init_args.num_validation=2", "--data.init_args.num_test=0", "--data.init_args.batch_size=2",
        "--model.init_args.noise=0.2", "--model.init_args.block_size=3", "--model.init_args.num_anchors=2",
        "--trainer.enable_progress_bar=false", *extra,
    ]  # fmt: skip


def test_a_run_leaves_a_head_and_resumes_bit_equal(verifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saving = {"dirpath": str(tmp_path), "filename": "{step}", "save_top_k": -1, "every_n_train_steps": 2}
    keep = {"class_path": "ModelCheckpoint", "init_args": saving}
    (tmp_path / "keep.json").write_text(json.dumps({"trainer": {"callbacks+": [keep]}}))
    common = words(verifier, tmp_path, "--config", str(tmp_path / "keep.json"), "--trainer.max_steps=3",
                   "--trainer.val_check_interval=3", "--data.init_args.num_train=6")  # fmt: skip
    whole = main(["fit", *common])
    saved = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    resumed = main(["fit", *common, "--ckpt_path", str(tmp_path / "step=2.ckpt")])
    expected, found = whole.model.state_dict(), resumed.model.state_dict()
    assert expected.keys() == found.keys() == saved["state_dict"].keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not all(torch.equal(expected[name], saved["state_dict"][name]) for name in expected)
    assert saved["stage"] == "DraftHeadDistillation"
    assert "accept/length" in whole.trainer.callback_metrics
    folder = tmp_path / "runs/tiny_eagle2/drafter"
    notes = json.loads((folder / "head.json").read_text())
    assert (notes["task"], notes["step"], notes["method"]) == ("DraftHeadDistillation", 3, "linear")
    head = load_head(folder, whole.model.verifier)
    assert all(torch.equal(v, whole.model.drafter.state_dict()[n]) for n, v in head.state_dict().items())


def test_generate_takes_a_head_and_plan_does_not(verifier, tmp_path):
    save_head(LinearHead(tiny_backbone("verifier", 0, 2)), tmp_path / "head")
    prompts(1)[0].images[0].save(tmp_path / "a.png")
    asked = ["--images", str(tmp_path / "a.png"), "--prompt=What?", "--verifier", verifier,
             "--max_new_tokens=9", "--block_size=3", "--device=cpu"]  # fmt: skip
    drafted, alone = (
        main(["generate", *asked, "--drafter", name]) for name in (str(tmp_path / "head"), "null")
    )
    assert drafted.tokens == alone.tokens
    assert drafted.rounds
    with pytest.raises(ValueError, match="routes nothing"):
        main(["generate", *asked, "--drafter", str(tmp_path / "head"), "--num_routed=4"])
    with pytest.raises(ValueError, match="plan counts routed drafters"):
        main(["plan", *words(verifier, tmp_path)])


def test_transformers_own_call_takes_a_head(verifier):
    backbone, other = tiny_backbone("verifier", 0, 2), tiny_backbone("verifier", 5, 2)
    request = next(p for p in prompts(3) if p.images)
    inputs, records = hf_inputs(request), []
    options = {"do_sample": False, "max_new_tokens": 8, "custom_generate": speculative_generate}
    head = LinearHead(backbone).eval()
    output = backbone.model.generate(**inputs, **options, drafter=head, block_size=3, records=records)
    plain_answer = hf_generate(backbone, request, max_new_tokens=8)
    assert output[0, inputs["input_ids"].shape[1] :].tolist() == plain_answer
    assert records[0].rounds
    with pytest.raises(ValueError, match="loaded beside another model"):
        other.model.generate(**inputs, **options, drafter=head)


def test_preview_marks_what_is_supervised(verifier, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = words(verifier, tmp_path, "--model.init_args.num_anchors=null", "--model.init_args.depth=3")
    shown = main(["data", "preview", *options, "--example=1"])
    assert shown in capsys.readouterr().out
    (marked,) = [line for line in shown.splitlines() if line.startswith("* supervised")]
    count = int(marked.split()[2])
    assert 1 <= count <= 5  # the answer without its first token
    assert "visual tokens" in shown
    assert f"supervised: {count} of " in shown
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]
    with pytest.raises(ValueError, match="the training data have 0 to 11"):
        main(["data", "preview", *options, "--example=12"])
    routed = ["--config", str(ROOT / "configs/experiment/tiny_kd.yaml")]
    with pytest.raises(ValueError, match="give a config with DraftHeadDistillation"):
        main(["data", "preview", *routed])


def test_a_draft_vocabulary_holds_the_most_frequent_ids(verifier):
    answers = ([7, 7, 7, 9, 9, 3], [9, 5, 300], [7, 300, 300, 3])
    data = [Example(None, torch.tensor(answer), "x", "x") for answer in answers]
    assert frequent_ids(data, 5, (2,), 400) == [2, 3, 7, 9, 300]
    assert frequent_ids(data, 9, (2,), 400) == [0, 1, 2, 3, 4, 5, 7, 9, 300]
    built = task(verifier, head={"ids": [0, 1, 2, 3]})
    built.choose_vocabulary(data)
    ends = set(built.verifier.eos_ids)
    assert set(built.drafter.draft_ids.tolist()) == {*ends, *sorted({7, 9, 300} - ends)[: 4 - len(ends)]}
    with pytest.raises(ValueError, match="drafts from the whole vocabulary"):
        DraftHead.restrict(built.drafter, [1])
