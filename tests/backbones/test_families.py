"""What every family must prove, on tiny random checkpoints that go through the public loading path."""

import copy

import numpy as np
import pytest
import torch
from helpers import agreeing_drafter, hf_generate, hf_inputs, tiny_backbone
from PIL import Image
from scipy.stats import chi2
from standins import FAMILIES, save_standin

from data_modules.collate import Batch, Example
from tiger.backbones.base import Prompt, assemble
from tiger.backbones.loading import load_backbone
from tiger.backbones.videos import Video
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.decoding.verifier import Verifier
from tiger.drafting.saving import load_drafter
from tiger.training import AcceptanceAlignment, KDWarmStart

NEW = 16
NOISE = np.random.default_rng(0)


def image(rows, columns):
    return Image.fromarray(NOISE.integers(0, 256, (rows, columns, 3), dtype=np.uint8))


def video(frames, rows, columns, fps):
    return Video(NOISE.integers(0, 256, (frames, rows, columns, 3), dtype=np.uint8), fps)


PROMPTS = {
    "one image": Prompt("What is this?", (image(64, 64),), id="one image"),
    "images of many sizes": Prompt("Compare.", (image(40, 150), image(33, 17), image(97, 64)), id="images"),
    "images in the text": Prompt(
        "First <image>, then <image>: what is new?", (image(64, 48), image(33, 64)), id="inline"
    ),
    "text": Prompt("Say something.", id="text"),
    "system": Prompt("And this?", (image(31, 80),), "Answer in one word.", id="system"),
    "video": Prompt("What happens?", videos=(video(5, 48, 64, 1.0),), id="video"),
    "image and videos": Prompt(
        "Now?", (image(50, 50),), id="all", videos=(video(4, 32, 32, 2.0), video(2, 32, 64, 0.5))
    ),
}


class Pair:
    """Verifier and drafter of a family, saved and loaded."""

    def __init__(self, family, folder):
        self.folders = {role: save_standin(family, folder / role, role) for role in ("verifier", "drafter")}
        self.verifier = load_backbone(self.folders["verifier"])
        self.verifier.eos_ids = ()
        self.prompts = {
            name: prompt for name, prompt in PROMPTS.items() if not prompt.videos or self.verifier.reads_video
        }
        # A ragged batch of five, videos included where the family reads them.
        self.batch = [*self.prompts.values(), PROMPTS["one image"]][-5:]
        self.expected = {
            prompt.id: hf_generate(self.verifier, prompt, max_new_tokens=NEW, eos_token_id=None)
            for prompt in self.prompts.values()
        }

    def drafter(self, **settings):
        torch.manual_seed(0)  # of the router
        return load_drafter(self.folders["drafter"], **settings)

    def check(self, drafter, block_size, prompts):
        """Decodes and compares with transformers' own answers."""
        decoder = SpeculativeDecoder(self.verifier, drafter, block_size, NEW)
        answers = decoder.generate(prompts)
        assert [a.tokens for a in answers] == [self.expected[prompt.id] for prompt in prompts]
        return answers


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(autouse=True)
def _no_grad(request):
    with torch.set_grad_enabled("gradient" in request.node.name):
        yield


def assembled(backbone, prompts, rows=None):
    inputs = [backbone.prepare(prompt) for prompt in prompts]
    banks = backbone.encode(inputs)
    return inputs, banks, assemble(inputs, banks, [backbone.embed(entry.ids) for entry in inputs], rows)


def plain_logits(backbone, prompt, answer=()):
    """Logits of transformers' own uncached call on a prompt and an answer, over the tokenizer's ids."""
    inputs = hf_inputs(prompt, backbone.processor)
    ids = torch.cat([inputs.pop("input_ids"), torch.tensor([list(answer)], dtype=torch.long)], dim=1)
    inputs["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(answer)))
    return backbone.model(input_ids=ids, **inputs).logits[0, :, : backbone.vocab_size]


def test_the_references_differ(pair):
    assert all(len(set(answer)) > 3 for answer in pair.expected.values())
    assert len(set(map(tuple, pair.expected.values()))) == len(pair.expected)


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_all_rows_inline_are_the_plain_model(pair, role):
    backbone = load_backbone(pair.folders[role])
    _, _, batch = assembled(backbone, pair.prompts.values())
    logits = backbone.logits(backbone.run_assembled(batch))
    for row, prompt in enumerate(pair.prompts.values()):
        expected = plain_logits(backbone, prompt)
        assert batch.lengths[row] == len(expected)
        assert (logits[row, : len(expected)] - expected).abs().max() < 1e-5


def test_dropping_rows_equals_masking_their_keys(pair):
    backbone = pair.verifier
    for prompt in pair.prompts.values():
        if prompt.images or prompt.videos:
            _, banks, full = assembled(backbone, [prompt])
            rows = torch.arange(len(banks[0]))[1::3]
            _, _, few = assembled(backbone, [prompt], [rows])
            kept = torch.isin(full.bank_rows[0], rows) | ~full.visual[0]
            length = full.lengths[0]
            causal = torch.ones(length, length, dtype=torch.bool).tril()
            mask = causal & (kept | torch.eye(length, dtype=torch.bool))
            masked = backbone.run(
                full.embeddings, full.position_ids, mask[None, None], None, full.visual, full.deepstack
            )
            dropped = backbone.run_assembled(few)
            assert not kept.all()
            assert (backbone.logits(masked[0, kept]) - backbone.logits(dropped[0])).abs().max() < 1e-5


def test_cached_passes_equal_the_uncached_model(pair):
    verifier = Verifier(pair.verifier)
    answer = torch.tensor([[20, 70, 33, 41, 99, 12]])
    for prompt in pair.prompts.values():
        state, first = verifier.prefill([pair.verifier.prepare(prompt)], reserve=8)
        found = [first]
        for start, count in ((0, 1), (1, 3), (4, 2)):
            verifier.run(state, answer[:, start : start + count].flip(1))  # rejected, leaves no trace
            found.append(verifier.run(state, answer[:, start : start + count])[0])
            verifier.commit(state, [count])
        expected = plain_logits(pair.verifier, prompt, answer[0].tolist())[-7:]
        assert (torch.cat(found) - expected).abs().max() < 1e-5


def test_positions_and_banks(pair):
    backbone = pair.verifier
    axes = False
    for prompt in pair.prompts.values():
        inputs, banks, batch = assembled(backbone, [prompt])
        entry, bank = inputs[0], banks[0]
        assert entry.position_ids.shape == (backbone.num_axes, len(entry.ids))
        assert len(bank) == int(entry.visual.sum()) == bank.position_ids.shape[1]
        assert torch.equal(bank.position_ids, entry.position_ids[:, entry.visual])
        assert all(len(rows) == len(bank) for rows in bank.deepstack)
        complete = backbone.run_assembled(batch)
        if len(bank) and backbone.num_axes > 1:
            flat = torch.arange(batch.lengths[0]).expand_as(batch.position_ids)
            batch.position_ids.copy_(flat)
            assert (backbone.run_assembled(batch) - complete).abs().max() > 1e-2
            axes = True
        if bank.deepstack and len(bank):
            _, _, batch = assembled(backbone, [prompt])
            for rows in batch.deepstack:
                rows.zero_()
            assert (backbone.run_assembled(batch) - complete).abs().max() > 1e-2
    assert axes == (backbone.num_axes > 1)


def test_recorded_attention_is_that_of_the_eager_model(pair):
    eager = load_backbone(pair.folders["verifier"], attention="eager")
    for prompt in pair.prompts.values():
        _, _, batch = assembled(pair.verifier, [prompt])
        _, found = pair.verifier.run_with_attention(batch, num_layers=2)
        inputs = hf_inputs(prompt, eager.processor)
        weights = torch.stack(eager.model(**inputs, output_attentions=True).attentions[-2:])
        assert (found - weights.mean((0, 2))).abs().max() < 1e-5


@pytest.mark.parametrize("layout", ["suffix", "inline"])
@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_greedy_with_a_random_drafter(pair, block_size, layout):
    drafter = pair.drafter(selector="routed", layout=layout, num_routed=5)
    pair.check(drafter, block_size, pair.batch)
    for prompt in pair.prompts.values():
        pair.check(drafter, block_size, [prompt])


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_greedy_with_the_verifier_as_drafter(pair, block_size):
    drafter = load_drafter(pair.folders["verifier"])
    for prompts in (pair.batch, [pair.batch[0]]):
        for answer in pair.check(drafter, block_size, prompts):
            *whole, last = [entry.accepted for entry in answer.rounds]
            assert whole == [block_size] * len(whole)
            assert last == min(block_size, NEW - 1 - len(whole) * (block_size + 1))


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_greedy_with_a_corrupted_copy(pair, block_size):
    drafter = agreeing_drafter(pair.verifier, noise=0.1)
    accepted = set()
    for prompts in (pair.batch, [pair.batch[-1]]):
        for answer in pair.check(drafter, block_size, prompts):
            accepted |= {entry.accepted for entry in answer.rounds}
    assert len(accepted) > 1  # some drafts are right, some are wrong


def test_samples_follow_the_plain_model(pair):
    sampling, length, samples = Sampling(1.0, top_k=3), 3, 1000
    prompt = Prompt("Hi", (image(24, 24),))
    expected = {}

    def extend(answer, chance):
        if len(answer) == length:
            expected[answer] = chance
            return
        best = plain_logits(pair.verifier, prompt, answer)[-1].double().topk(3)
        for token, more in zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True):
            extend((*answer, token), chance * more)

    extend((), 1.0)
    counts = dict.fromkeys(expected, 0)
    drafter = agreeing_drafter(pair.verifier, 0.05)
    drafter.log_draft_temperature -= 0.5
    decoder = SpeculativeDecoder(pair.verifier, drafter, 2, length, sampling)
    rounds = []
    for seed in range(samples // 250):
        decoder.seed = seed
        for answer in decoder.generate([prompt] * 250):
            counts[tuple(answer.tokens)] += 1  # a KeyError is an answer that the verifier never gives
            rounds += [entry.accepted for entry in answer.rounds]
    assert len(set(rounds)) == 3
    wanted = np.array([*expected.values()]) * samples
    found, rare = np.array([*counts.values()]), wanted < 5
    wanted = np.append(wanted[~rare], max(wanted[rare].sum(), 1e-9))
    found = np.append(found[~rare], found[rare].sum())
    assert chi2.sf(((found - wanted) ** 2 / wanted).sum(), len(wanted) - 1) > 0.01


def test_ids_that_pad_the_vocabulary_are_never_used(pair):
    """Even where their outputs are the largest, in models whose vocabularies are padded differently."""
    verifier = load_backbone(pair.folders["verifier"])
    drafter = pair.drafter(selector="full", layout="suffix")
    sizes = [model.text_config.vocab_size for model in (verifier, drafter.backbone)]
    assert sizes[0] != sizes[1]
    known = len(verifier.tokenizer)
    assert min(sizes) > known == verifier.vocab_size == drafter.backbone.vocab_size
    prompt = PROMPTS["one image"]
    for backbone in (verifier, drafter.backbone):
        head = backbone.model.get_output_embeddings()
        head.weight[known:] = 50 * head.weight[:known].mean(0)
        head.weight[known + 1 :] *= -1  # one of each sign wins
        raw = backbone.model(**hf_inputs(prompt, backbone.processor)).logits
        assert (raw.argmax(-1) >= known).any()
    verifier.eos_ids = ()
    expected = hf_generate(verifier, prompt, max_new_tokens=NEW, eos_token_id=None)
    for sampling in (Sampling(), Sampling(1.0)):
        answer = SpeculativeDecoder(verifier, drafter, 4, NEW, sampling).generate([prompt])[0]
        assert max(answer.tokens) < known
        assert max(token for entry in answer.rounds for token in entry.drafted) < known
        assert sampling.temperature or answer.tokens == expected
        plain = AutoregressiveDecoder(verifier, NEW, sampling).generate([prompt])[0]
        assert sampling.temperature or plain.tokens == expected


def test_more_routed_tokens_than_the_bank_holds_are_all_of_it(pair):
    prompt = PROMPTS["one image"]
    drafter = pair.drafter(selector="routed", layout="suffix", num_routed=10_000)
    size = len(drafter.encode([prompt])[1][0])  # the global token included
    for answer in pair.check(drafter, 4, [prompt, PROMPTS["text"]]):
        expected = list(range(size)) if answer.id == prompt.id else []
        assert all(entry.route == expected for entry in answer.rounds)


@pytest.mark.parametrize("selector", ["sparsevlm", "vispruner"])
def test_greedy_with_a_pruner_as_selector(pair, selector):
    drafter = pair.drafter(selector=selector, layout="suffix", num_routed=5)
    routes = set()
    for prompts in (pair.batch, [PROMPTS["one image"]]):
        banks = drafter.encode(prompts)[1]
        for bank, answer in zip(banks, pair.check(drafter, 4, prompts), strict=True):
            assert all(len(entry.route) == min(5, len(bank)) for entry in answer.rounds)
            routes |= {tuple(entry.route) for entry in answer.rounds if answer.id == "one image"}
    assert selector == "sparsevlm" or len(routes) == 1  # which reads no text


@pytest.mark.parametrize("task", [KDWarmStart, AcceptanceAlignment])
def test_the_gradient_reaches_the_router(pair, task):
    """In both stages, with guidance carried from the verifier's visual grids to the drafter's."""
    torch.manual_seed(0)
    built = task(**pair.folders, num_anchors=2, block_size=4, num_routed=5, validation_temperature=0.0)
    built.configure_model()
    built.log = lambda *args, **kwargs: None
    examples = [Example(p, torch.randint(10, 200, (9,)), "x", "x") for p in pair.prompts.values()]
    verifier_grids, drafter_grids = (
        model.encode([model.prepare(PROMPTS["one image"])])[0].grids
        for model in (built.verifier, built.drafter.backbone)
    )
    assert verifier_grids != drafter_grids
    loss = built.train().training_step(Batch(examples), 0)
    loss.backward()
    assert loss.isfinite()
    assert built.drafter.router.query.weight.grad.norm() > 0
    assert built.drafter.router.key.weight.grad.norm() > 0


def test_a_template_without_a_place_for_images(pair):
    backbone = copy.copy(pair.verifier)
    backbone.processor = copy.copy(backbone.processor)
    backbone.processor.chat_template = "{% for m in messages %}{{ m['content'][-1]['text'] }}{% endfor %}"
    with pytest.raises(ValueError, match=r"Found total 0 .* tokens and 1 images"):
        backbone.prepare(PROMPTS["one image"])


def test_a_video_needs_a_family_that_reads_videos(pair, monkeypatch):
    if pair.verifier.reads_video:  # every family must refuse once it says so
        monkeypatch.setattr(type(pair.verifier), "reads_video", False)
    family = pair.verifier.model.config.model_type
    with pytest.raises(ValueError, match=f"'video' holds a video, which {family} models do not read"):
        pair.verifier.prepare(PROMPTS["video"])


def test_a_place_for_each_image_or_none():
    backbone = tiny_backbone(layers=1)
    with pytest.raises(ValueError, match=r"'odd' has 1 images and 2 places <image>"):
        backbone.prepare(Prompt("Is <image> like <image>?", (image(32, 32),), id="odd"))
