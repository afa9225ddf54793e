"""What EAGLE-3 heads have of their own: layers, a vocabulary and its scores."""

import json

import pytest
import torch
from helpers import prompts, tiny_backbone

from tests.decoding.table import TableBackbone
from tests.decoding.test_greedy_equality import tokens
from tests.decoding.test_sampled_distribution import TABLES
from tests.drafting.head_texts import fit, read_texts
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.eagle3 import Eagle3, default_layers
from tiger.drafting.heads.saving import load_head, save_head

NEW = 16
BATCH = prompts(3)


class Sizes:
    def __init__(self, num_layers, num_deepstack):
        self.num_layers, self.num_deepstack = num_layers, num_deepstack


@pytest.mark.parametrize(
    ("num_layers", "num_deepstack", "expected"),
    [(36, 0, (2, 18, 33)), (36, 3, (3, 18, 33)), (28, 3, (3, 14, 25)), (16, 1, (2, 8, 13)), (3, 1, (2,))],
)
def test_layers_stand_behind_the_visual_features(num_layers, num_deepstack, expected):
    assert default_layers(Sizes(num_layers, num_deepstack)) == expected


def test_unusable_layers_are_refused():
    with pytest.raises(ValueError, match=r"enters layers \[1, 3\], but the verifier has layers 0 to 2"):
        Eagle3(tiny_backbone(), layers=(1, 3))
    assert tiny_backbone().num_deepstack == 1
    with pytest.raises(ValueError, match=r"layers \[0, 2\], but the verifier adds visual .* from 1 on"):
        Eagle3(tiny_backbone(), layers=(0, 2))


def test_features_stand_side_by_side():
    head = Eagle3(tiny_backbone(), layers=(1, 2))
    both, _ = read_texts(head, BATCH, [[5, 6]] * 3)
    late, _ = read_texts(Eagle3(tiny_backbone(), layers=(2,)), BATCH, [[5, 6]] * 3)
    assert torch.equal(both.features[..., 192:], late.features)
    assert head.fc.in_features == 384


def test_a_part_of_the_vocabulary(tmp_path):
    verifier = tiny_backbone()
    verifier.eos_ids = ()
    expected = AutoregressiveDecoder(verifier, NEW).generate(BATCH)
    said = sorted({token for answer in tokens(expected) for token in answer})[::2]
    head = Eagle3(verifier, draft_vocab_size=len(said), total_tokens=14, depth=2, top_k=3)
    assert head.draft_ids.tolist() == list(range(len(said)))
    head.restrict(said[::-1])
    assert head.draft_ids.tolist() == said
    assert torch.equal(head.lm_head.weight, verifier.model.get_output_embeddings().weight[said])
    save_head(head, tmp_path)
    loaded = load_head(tmp_path, verifier)
    assert torch.equal(loaded.draft_ids, head.draft_ids)
    found = SpeculativeDecoder(verifier, loaded, 4, NEW).generate(BATCH)
    assert tokens(found) == tokens(expected)
    drafted = {token for answer in found for entry in answer.rounds for token in entry.drafted}
    assert len(drafted) > 3
    assert drafted <= set(said)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("verifier", {"vocab_size": 9}, r"is a head for another verifier: it needs vocab_size 9, not \d+"),
        ("settings", {"layers": [2, 3]}, r"enters layers \[2, 3\], but the verifier has layers 0 to 2"),
        ("settings", {"layers": [1, 2]}, r"fc\.weight is \[192, 192\], not \[192, 384\]"),
    ],
)
def test_a_checkpoint_of_another_verifier_is_refused(tmp_path, part, change, message):
    save_head(Eagle3(tiny_backbone()), tmp_path)
    entries = json.loads((tmp_path / "head.json").read_text())
    (tmp_path / "head.json").write_text(json.dumps(entries | {part: entries[part] | change}))
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path, tiny_backbone())


def test_unusable_vocabularies_are_refused():
    verifier = TableBackbone(TABLES["verifier"], (5,))
    for size in (0, 7):
        with pytest.raises(ValueError, match=f"draft_vocab_size is {size}; the verifier has 6 ids"):
            Eagle3(verifier, (), size)
    head = Eagle3(verifier, (), 3)
    for ids in ([0, 1], [0, 1, 1], [0, 1, 6], [-1, 0, 5]):
        with pytest.raises(ValueError, match="draft_vocab_size is 3, and ids end below 6"):
            head.restrict(ids)
    with pytest.warns(UserWarning, match=r"None of the 3 ids ends an answer \(\(5,\)\)"):
        head.restrict([0, 1, 2])


def test_weights_are_named_as_in_speculators():
    names = set(Eagle3(tiny_backbone(), draft_vocab_size=20).state_dict())
    layer = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{n}_proj" for n in ("gate", "up", "down")}
    layer |= {"hidden_norm", "input_layernorm", "post_attention_layernorm"}
    own = {"fc", "norm", "lm_head"} | {f"layers.0.{name}" for name in layer}
    assert names == {f"{name}.weight" for name in own} | {"draft_ids"}


def test_placeholders_stand_for_images():
    verifier = tiny_backbone()
    head = Eagle3(verifier)
    text, first = read_texts(head, BATCH, [[5, 6, 7]] * 3)
    with torch.no_grad():
        found = head.unroll(text, first, 2)
        text.embeddings = text.embeddings * ~text.visual[..., None]
        assert torch.equal(head.unroll(text, first, 2), found)


def test_recursion_continues_the_state_before_the_norm():
    head = Eagle3(tiny_backbone())
    text, first = read_texts(head, BATCH, [[5, 6, 7]] * 3)
    with torch.no_grad():
        found = head.unroll(text, first, 2)
        head.norm.weight.mul_(torch.linspace(0.5, 2, 192))
        assert torch.equal(head.unroll(text, first, 2), found)
    assert fit(head, BATCH, [[5, 6, 7]] * 3, steps=2)[1] > 0
