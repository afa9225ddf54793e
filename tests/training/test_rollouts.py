"""Early-stopped rollouts give the loss and the gradient of whole ones."""

from functools import cache

import pytest
import torch
from PIL import Image

from data_modules.collate import Batch, Example
from data_modules.examples import PromptFormat
from data_modules.synthetic.world import generate
from tiger.backbones.base import Prompt
from tiger.drafting.blocks import Sampler, route
from tiger.training import AcceptanceAlignment
from tiger.training.rollouts import roll_out

SIZE = 6


def task(**options):
    torch.manual_seed(0)  # of the router, which the plain model lacks
    settings = {"num_anchors": 2, "block_size": SIZE, "beta": 0.0, "reward": "accepted_prefix"}
    built = AcceptanceAlignment(drafter="tiny/vanilla", **settings | options)
    built.configure_model()
    built.log = lambda *args, **kwargs: None
    return built.train()


@cache
def batch():
    """Questions with their reference answers."""
    form, examples = PromptFormat("tiny/verifier"), []
    for seed in range(3):
        sample = generate(seed)
        turn = max(sample.turns, key=lambda turn: len(turn.answer))
        prompt = Prompt(turn.question, (Image.fromarray(sample.image),), id=str(seed))
        examples.append(Example(prompt, form.answer_ids(turn.answer), "x", "x"))
    return Batch(examples)


def rolled(built, chunk, test="sampling", group=4, seed=0):
    examples = batch().examples
    texts, anchors = built.texts(examples), torch.tensor([[0, 4], [2, 2], [1, 5]])
    answers = [e.response for e in examples]
    prefixes = built.teacher.prefixes([e.prompt for e in examples], answers)
    draws, tests = torch.rand(2, 3, 2, group, SIZE, generator=torch.Generator().manual_seed(seed))
    sampler = Sampler(built.drafter, texts, route(built.drafter, texts, anchors), draws, 1.0)
    return roll_out(sampler, built.teacher.branches(prefixes, anchors, group), tests, test, chunk), tests


@pytest.mark.parametrize("chunk", [1, 2, 4, SIZE])
@pytest.mark.parametrize("test", ["sampling", "greedy"])
def test_early_stopped_rollouts_are_the_beginnings_of_whole_ones(chunk, test):
    built = task()
    whole, tests = rolled(built, None, test)
    early, _ = rolled(built, chunk, test)
    failed = (tests >= whole.chance).int()
    alive = failed.cumsum(-1) - failed == 0
    assert torch.equal(early.counts, alive)
    assert 1 < early.counts.sum(-1).float().mean() < SIZE, "some blocks must fail early and some late"
    assert torch.equal(early.blocks, whole.blocks * alive)
    torch.testing.assert_close(early.chance, whole.chance * alive, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(early.hidden[alive], whole.hidden[alive], atol=1e-4, rtol=1e-4)


def test_rollouts_that_stop_early_draft_and_judge_fewer_tokens(monkeypatch):
    built, read = task(), {}
    draw = Sampler.draw
    for chunk in (None, 1):
        drafted, judged, run = [], [], type(built.verifier).run

        def drawing(sampler, step, wanted, drafted=drafted):
            drafted.append(int(wanted.sum()))
            draw(sampler, step, wanted)

        def judging(embeddings, *args, judged=judged, run=run):
            judged.append(embeddings.shape[0] * embeddings.shape[1])
            return run(built.verifier, embeddings, *args)

        monkeypatch.setattr(Sampler, "draw", drawing)
        monkeypatch.setattr(built.verifier, "run", judging, raising=True)
        found, _ = rolled(built, chunk)
        assert sum(drafted) == found.counts.sum()
        read[chunk] = sum(drafted), sum(judged[1:])  # the first pass reads the prefix
    assert read[None][0] == 3 * 2 * 4 * SIZE
    assert read[1][0] < 0.9 * read[None][0]
    assert read[1][1] < 0.9 * read[None][1]


def test_nothing_is_drafted_behind_an_end_token():
    built = task()
    plain, _ = rolled(built, None)
    end = plain.blocks.flatten().mode().values.item()
    built.verifier.eos_ids = (end,)
    for chunk in (None, 2):
        found, _ = rolled(built, chunk)
        ends = (found.blocks == end) & found.counts
        assert ends.any()
        assert (ends.cumsum(-1) - ends.int())[found.counts].max() == 0
        if chunk is None:
            expected = ((plain.blocks == end).cumsum(-1) - (plain.blocks == end).int()) == 0
            assert torch.equal(found.counts, expected)


@pytest.mark.parametrize(
    ("reward", "test"),
    [
        ("accepted_prefix", "sampling"),
        ("accepted_prefix", "greedy"),
        ("binary", "sampling"),
        ("expected_prefix", "greedy"),
    ],
)
def test_loss_and_gradient_equal_those_of_whole_rollouts(reward, test):
    results = []
    for chunk in (None, 1, 3, SIZE):
        options = {"reward": reward, "test": test, "rollout_chunk": chunk}
        built = task(temperature=2.0, guidance_weight=0.0, **options)
        loss = built.training_step(batch(), 0)
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in built.parameters() if p.grad is not None])
        results.append((loss.detach(), gradient))
    assert results[0][1].norm() > 1e-3
    for loss, gradient in results[1:]:
        torch.testing.assert_close(loss, results[0][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gradient, results[0][1], atol=1e-4, rtol=1e-3)


def test_divergences_do_not_depend_on_the_chunk():
    losses = []
    for chunk in (1, 4, SIZE):
        built = task(rollout_chunk=chunk, kd_weight=0.7, beta=0.5)
        with torch.no_grad():
            for parameter in built._reference.backbone.model.model.language_model.parameters():
                parameter.mul_(1.1)
        losses.append(built.training_step(batch(), 0).detach())
    torch.testing.assert_close(torch.stack(losses), losses[0].expand(3), atol=1e-5, rtol=1e-5)


def test_reach_that_was_drawn_is_the_chance_of_reach_on_average():
    """What early-stopped rollouts weigh `kd_weight` with has the mean of what whole ones weigh it with."""
    built = task()
    early, _ = rolled(built, 3, group=64, seed=1)
    whole, _ = rolled(built, None, group=64, seed=2)
    survival = whole.chance.cumprod(-1)
    expected = torch.cat([torch.ones_like(survival[..., :1]), survival[..., :-1]], -1)
    drawn, expected = early.counts.float().mean((0, 1, 2)), expected.mean((0, 1, 2))
    torch.testing.assert_close(drawn, expected, atol=0.1, rtol=0)
    assert expected[-1] < 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "overlap"}, "overlap pays for every token"),
        ({"credit": "block"}, "use credit prefix"),
        ({"reward": "token_agreement"}, "behind a failed one"),
        ({"reward": "expected_prefix"}, "draws no test"),
        ({"rollout_chunk": 0}, "rollout_chunk is 0"),
        ({"layout": "inline"}, "needs layout suffix"),
    ],
)
def test_what_early_stopping_would_change_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        task(**{"rollout_chunk": 2} | options)
