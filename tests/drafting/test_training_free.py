"""What every training-free method must prove: exact answers, no matter what it remembers."""

import itertools
from pathlib import Path

import pytest
import torch
import yaml
from helpers import ending_backbone, prompts

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import check_records, tokens
from tests.decoding.test_sampled_distribution import EOS, LENGTH, TABLES, p_value
from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import PhaseTimer
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.base import Reading
from tiger.drafting.methods import METHODS, build_method, method_options

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "drafter"
NEW = 24
BATCH = prompts(4)
WARM = [{"method": name, "warm": True} for name in ("token_recycling", "racer")]
EVERY = [{"method": name} for name in METHODS] + WARM + [{"method": "racer", "chain": True}]
GENERATORS = [torch.Generator()]


@pytest.fixture(scope="module")
def expected():
    return AutoregressiveDecoder(ending_backbone(), NEW).generate(BATCH)


@pytest.mark.parametrize("options", EVERY, ids=str)
@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_text_is_the_verifiers(expected, options, rows):
    decoder = SpeculativeDecoder(ending_backbone(), build_method(options), 8, NEW)
    found = [a for i in range(0, 4, rows) for a in decoder.generate(BATCH[i : i + rows])]
    assert tokens(found) == tokens(expected)
    for answer in found:
        check_records(answer)
    assert sum(entry.accepted for answer in found for entry in answer.rounds) > 0


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_ends_are_those_of_the_verifier(expected, options):
    eos = expected[1].tokens[6]
    cut = AutoregressiveDecoder(ending_backbone([eos]), NEW).generate(BATCH)
    assert len(set(map(len, tokens(cut)))) > 1
    assert tokens(
        SpeculativeDecoder(ending_backbone([eos]), build_method(options), 8, NEW).generate(BATCH)
    ) == tokens(cut)


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_sampled_answers_are_those_drawn_without_a_drafter(options):
    sampling = Sampling(1.0, top_p=0.9)
    alone = AutoregressiveDecoder(ending_backbone(), NEW, sampling, seed=3).generate(BATCH)
    decoder = SpeculativeDecoder(ending_backbone(), build_method(options), 8, NEW, sampling, seed=3)
    assert tokens(decoder.generate(BATCH)) == tokens(alone)
    assert tokens(decoder.generate(BATCH[::-1])) == tokens(alone)[::-1]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("options", EVERY, ids=str)
def test_samples_follow_the_verifier(options, sampling):
    verifier = TableBackbone(TABLES["verifier"], (EOS,))
    decoder = SpeculativeDecoder(verifier, build_method(options), 2, LENGTH, sampling)
    assert p_value(decoder, sampling, samples=2000) > 0.01


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_small_vocabularies_and_repeated_text(options):
    verifier = TableBackbone(TABLES["verifier"])
    batch = [Prompt(f"{a}{b}" * 8, id=f"{a}{b}") for a, b in itertools.product(range(3), repeat=2)]
    expected = AutoregressiveDecoder(verifier, 20).generate(batch)
    for block_size in (1, 3, 12):
        found = SpeculativeDecoder(verifier, build_method(options), block_size, 20).generate(batch)
        assert tokens(found) == tokens(expected)
        assert max(entry.depth for answer in found for entry in answer.rounds) <= block_size


@pytest.mark.parametrize("options", WARM, ids=str)
def test_a_warm_memory_outlives_its_request(options):
    def acceptance(decoder):
        return [sum(e.accepted for e in decoder.generate([prompt])[0].rounds) for prompt in BATCH]

    warm = SpeculativeDecoder(ending_backbone(), build_method(options), 8, NEW)
    cold = SpeculativeDecoder(ending_backbone(), build_method(options | {"warm": False}), 8, NEW)
    first, again = acceptance(warm), acceptance(warm)
    assert sum(again) > sum(first)
    assert acceptance(cold) == acceptance(cold)


class Spy:
    """What a drafter is shown of the verifier's passes."""

    feature_layers = ()

    def __init__(self, inner):
        self.inner, self.readings = inner, []
        for name in ("num_nodes", "begin", "commit", "propose", "select_rows"):
            setattr(self, name, getattr(inner, name))

    def observe(self, state, reading):
        self.readings.append(reading)
        self.inner.observe(state, reading)


def test_readings_show_text_and_paths_only(expected):
    backbone, spy = ending_backbone(), Spy(build_method({"method": "token_recycling"}))
    SpeculativeDecoder(backbone, spy, 8, NEW).generate(BATCH)
    inputs = [backbone.prepare(prompt) for prompt in BATCH]
    prompt, *rounds = spy.readings
    for row, entry in enumerate(inputs):
        shown = [prompt.tokens[row, place].item() for place in prompt.kept[row]]
        assert shown == entry.ids[~entry.visual].tolist()
        whole = itertools.takewhile(lambda r: len(r.kept) == len(BATCH), rounds)
        read = [token for r in whole for token in r.tokens[row, r.kept[row]].tolist()]
        assert len(read) > 8
        assert read[:NEW] == expected[row].tokens[: len(read)]
    assert backbone.processor.image_token_id in prompt.tokens
    with torch.inference_mode():
        logits = backbone.logits(prompt.hidden)
        assert torch.equal(prompt.likeliest(3), logits.topk(3).indices)
    assert any((~r.valid).any() for r in rounds)  # rows of other sizes
    assert all(
        set(kept) <= set(places) for r in rounds for kept, places in zip(r.kept, r.places(), strict=True)
    )


def reading(ids, logits, kept):
    hidden = torch.zeros(1, len(ids), 1)
    return Reading(torch.tensor([ids]), hidden, hidden, lambda hidden: hidden, [kept], logits)


def observe(method, passes):
    """State of one request after passes of (tokens, kept places, likeliest next token at each place)."""
    state = method.begin([Prompt("")], 0, Sampling(), GENERATORS)
    for ids, kept, likeliest in passes:
        logits = torch.zeros(1, len(ids), 64)
        for place, ranked in enumerate(likeliest):
            logits[0, place, ranked] = torch.arange(len(ranked), 0, -1).float()
        method.observe(state, reading(ids, logits, kept))
    return state


def propose(method, state, root, block_size=8):
    """Tokens and parents of the one request's tree."""
    method.commit(state, [[root]])
    tree = method.propose(state, block_size, PhaseTimer())
    return tree.tokens[0].tolist(), tree.parents[0].tolist()


def test_accepted_places_teach_last():
    method = build_method({"method": "token_recycling"})
    places = [[9], [11], [12], [13]]
    for kept, expected in (([0, 1], 11), ([0, 2], 12), ([0], 13)):
        state = observe(method, [([1, 5, 5, 5], kept, places)])
        assert propose(method, state, 5, 1)[0][0] == expected


@pytest.mark.parametrize("name", sorted(METHODS))
def test_shipped_files_name_the_defaults(name):
    path = CONFIGS / f"{name}.yaml"
    options = method_options(str(path))
    assert options == yaml.safe_load(path.read_text())
    built, plain = build_method(options), build_method(method_options(name))
    assert type(built) is type(plain) is METHODS[name]
    assert vars(built) == vars(plain)
    assert {p.stem for p in CONFIGS.glob("*.yaml")} == set(METHODS)


def test_other_names_are_models():
    assert method_options("tiny/tiger") is None


def test_unusable_methods_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere\.yaml'"):
        method_options("nowhere.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("method: magic\n")
    with pytest.raises(ValueError, match="entry `method`: one of prompt_lookup, token_recycling, racer"):
        method_options(str(path))
    with pytest.raises(ValueError, match=r"'racer' cannot take .*'size'"):
        build_method({"method": "racer", "size": 3})
