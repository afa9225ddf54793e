"""Heads of others: written for speculators, and read as speculators and the methods' authors save them."""

import json

import pytest
import torch
from helpers import prompts, tiny_backbone
from safetensors.torch import load_file, save_file
from standins import save_standin
from transformers import LlamaConfig

from tests.decoding.test_greedy_equality import tokens
from tests.drafting.head_texts import fit
from tiger.backbones.folders import CONFIG
from tiger.backbones.loading import load_backbone
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.foreign import import_head
from tiger.drafting.heads.layers import layer_config
from tiger.drafting.heads.saving import build_head
from tiger.drafting.heads.speculators import WEIGHTS, save_speculators

NEW = 12
BATCH = prompts(3)
SMALL = {"total_tokens": 14, "depth": 2, "top_k": 3}
EOS = 2
VOCABULARY = sorted({EOS, *range(5, 799, 3)})


def new_head(method, **settings):
    torch.manual_seed(3)
    head = build_head(method, tiny_backbone(), **SMALL | settings).eval()
    with torch.no_grad():  # biases and norms that matter
        for parameter in head.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape)
    return head


def drafts(head, new=NEW):
    verifier = head.verifier
    verifier.eos_ids = ()
    found = SpeculativeDecoder(verifier, head, 8, new).generate(BATCH)
    assert tokens(found) == tokens(AutoregressiveDecoder(verifier, new).generate(BATCH))
    return [[entry.drafted for entry in answer.rounds] for answer in found]


def change_config(folder, **entries):
    """Sets entries of config.json; None removes one."""
    config = json.loads((folder / CONFIG).read_text()) | entries
    config = {name: value for name, value in config.items() if value is not None}
    (folder / CONFIG).write_text(json.dumps(config))


def change_layer(folder, **entries):
    layer = json.loads((folder / CONFIG).read_text())["transformer_layer_config"]
    change_config(folder, transformer_layer_config=layer | entries)


def change_weights(folder, **weights):
    """Replaces or adds weights; None removes one."""
    found = load_file(folder / WEIGHTS) | weights
    save_file({name: value for name, value in found.items() if value is not None}, folder / WEIGHTS)


@pytest.fixture
def written(tmp_path):
    """A head in the layout of speculators."""
    head = new_head("eagle3", draft_vocab_size=len(VOCABULARY), layers=(1, 2))
    head.restrict(VOCABULARY)
    save_speculators(head, tmp_path / "written", "owner/verifier")
    return tmp_path / "written"


def save_as_authors(head, folder):
    """Writes a head as its method's authors do: Llama's configuration, their names, the embeddings beside."""
    verifier, weights = head.verifier, dict(head.state_dict())
    names = {"adaptor.queries": "imadpt.q", "adaptor.": "imadpt."}
    if head.method == "eagle3":
        names = {"layers.0.": "midlayer."}
        ids = weights.pop("draft_ids")
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.isin(torch.arange(verifier.vocab_size), ids)
    for ours, theirs in names.items():
        weights = {name.replace(ours, theirs): value for name, value in weights.items()}
    weights["embed_tokens.weight"] = verifier.model.get_input_embeddings().weight.detach().clone()
    folder.mkdir()
    save_file(weights, folder / WEIGHTS)
    config = layer_config(verifier).to_dict()
    config |= {"rope_theta": config.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("vocabulary", [VOCABULARY, None], ids=["some", "all"])
def test_speculators_and_back(tmp_path, vocabulary):
    head = new_head("eagle3", draft_vocab_size=vocabulary and len(vocabulary), layers=(1, 2))
    if vocabulary:
        head.restrict(vocabulary)
    save_speculators(head, tmp_path / "out", "owner/verifier")
    back = import_head(tmp_path / "out", tiny_backbone())
    assert back.settings == head.settings
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in head.state_dict().items())
    assert drafts(back) == drafts(head)


def test_the_layout_is_that_of_speculators(written):
    config, weights = json.loads((written / CONFIG).read_text()), load_file(written / WEIGHTS)
    layer = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{n}_proj" for n in ("gate", "up", "down")}
    layer |= {"hidden_norm", "input_layernorm", "post_attention_layernorm"}
    own = {"fc", "norm", "lm_head"} | {f"layers.0.{name}" for name in layer}
    assert weights.keys() == {f"{name}.weight" for name in own} | {"d2t", "t2d"}
    assert weights["d2t"].dtype == torch.int64
    assert (torch.arange(len(VOCABULARY)) + weights["d2t"]).tolist() == VOCABULARY
    assert weights["t2d"].nonzero()[:, 0].tolist() == VOCABULARY
    assert weights["fc.weight"].shape == (192, 2 * 192)
    assert config["architectures"] == ["Eagle3Speculator"]
    assert config["speculators_model_type"] == "eagle3"
    assert config["draft_vocab_size"] == len(VOCABULARY)
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2]
    assert config["speculators_config"] == {
        "algorithm": "eagle3",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": 3,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "default_proposal_method": "greedy",
        "verifier": {
            "name_or_path": "owner/verifier",
            "architectures": ["Qwen3VLForConditionalGeneration"],
        },
    }
    layer = LlamaConfig(**config["transformer_layer_config"])
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert (layer.vocab_size, layer.num_hidden_layers, layer.head_dim) == (799, 1, 32)


@pytest.mark.parametrize("method", ["eagle2", "eagle3", "vispec"])
def test_checkpoints_of_the_authors(tmp_path, method):
    settings = {"draft_vocab_size": len(VOCABULARY), "layers": (1, 2)} if method == "eagle3" else {}
    head = new_head(method, **settings | ({"num_q": 3} if method == "vispec" else {}))
    if method == "eagle3":
        head.restrict(VOCABULARY)
    folder = save_as_authors(head, tmp_path / method)
    change_config(folder, tiger_settings=SMALL, eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 1]})
    back = import_head(folder, tiny_backbone())
    assert back.settings == head.settings
    assert drafts(back) == drafts(head)


def test_a_head_without_biases(tmp_path):
    head = new_head("eagle2")
    torch.nn.init.zeros_(head.fc.bias)
    folder = save_as_authors(head, tmp_path / "head")
    change_weights(folder, **{"fc.bias": None})
    assert torch.equal(import_head(folder, tiny_backbone()).fc.bias, head.fc.bias)


def test_layers_of_the_authors_where_nothing_is_said(tmp_path):
    verifier = tiny_backbone(layers=7)
    head = build_head("eagle3", verifier, layers=(2, 3, 4), draft_vocab_size=len(VOCABULARY))
    head.restrict(VOCABULARY)
    assert import_head(save_as_authors(head, tmp_path / "head"), verifier).feature_layers == (2, 3, 4)


def test_padding_of_the_vocabulary_is_cut_off(tmp_path):
    verifier = load_backbone(save_standin("qwen2_5_vl", tmp_path / "verifier"))
    padding = verifier.text_config.vocab_size - verifier.vocab_size
    assert padding > 0
    head = build_head("eagle3", verifier, layers=(0, 1))
    save_speculators(head, tmp_path / "head", "owner/verifier")
    assert (
        load_file(tmp_path / "head" / WEIGHTS)["t2d"].tolist()[-padding - 1 :] == [True] + [False] * padding
    )
    rows = torch.cat([head.lm_head.weight.detach(), torch.ones(padding, verifier.hidden_size)])
    change_weights(tmp_path / "head", **{"lm_head.weight": rows, "d2t": None})
    back = import_head(tmp_path / "head", verifier)
    assert back.draft_ids is None
    assert torch.equal(back.lm_head.weight, head.lm_head.weight)


def test_trained_heads_draft_what_is_accepted_after_both_ways(tmp_path):
    verifier = tiny_backbone()
    verifier.eos_ids = ()
    answers = tokens(AutoregressiveDecoder(verifier, NEW).generate(BATCH))
    head = new_head("eagle3", layers=(1, 2))
    fit(head, BATCH, answers)
    save_speculators(head.eval(), tmp_path, "owner/verifier")
    back = import_head(tmp_path, verifier)
    found = SpeculativeDecoder(verifier, back, 8, NEW).generate(BATCH)
    assert sum(entry.accepted for answer in found for entry in answer.rounds) > 3
    assert drafts(back) == drafts(head)


def test_only_eagle3_has_the_layout(tmp_path):
    with pytest.raises(ValueError, match="holds EAGLE-3 heads, and this is a 'medusa' head"):
        save_speculators(build_head("medusa", tiny_backbone()), tmp_path, "owner/verifier")
    for layers in ((2, 1), ()):
        with pytest.raises(ValueError, match=r"reads layers \[.*join one or more different layers in asc"):
            save_speculators(new_head("eagle3", layers=layers), tmp_path, "owner/verifier")
    assert not any(tmp_path.iterdir())


def test_a_vocabulary_without_ends_gives_a_warning(tmp_path):
    head = new_head("eagle3", draft_vocab_size=3, layers=(1, 2))
    with pytest.warns(UserWarning, match="None of the 3 ids ends an answer"):
        head.restrict([7, 8, 9])
    with pytest.warns(UserWarning, match="None of the 3 ids ends an answer"):
        save_speculators(head, tmp_path, "owner/verifier")
    with pytest.warns(UserWarning, match="None of the 3 ids ends an answer"):
        assert import_head(tmp_path, tiny_backbone()).draft_ids.tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 96}, "hidden_size 96, not 192"),
        ({"vocab_size": 800}, "vocab_size 800, not 799"),
        ({"num_key_value_heads": 6}, "num_key_value_heads 6, not 2"),
        ({"num_hidden_layers": 2}, "num_hidden_layers 2, not 1"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps 1e-05, not 1e-06"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters .*'factor': 2.0",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]}},
            "rope_parameters .*'mrope_section'",
        ),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"]}, "a head with sliding_attention"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_heads_of_other_verifiers_are_refused(written, changes, message):
    change_layer(written, **changes)
    with pytest.raises(ValueError, match=message):
        import_head(written, tiny_backbone())


def test_other_layers_are_refused(written):
    change_config(written, eagle_aux_hidden_state_layer_ids=[2, 18, 33])
    with pytest.raises(ValueError, match=r"enters layers \[2, 18, 33\], but the verifier has layers 0 to 2"):
        import_head(written, tiny_backbone())
    change_config(written, eagle_aux_hidden_state_layer_ids=[2])
    with pytest.raises(ValueError, match=r"fc.weight is \[192, 384\], not \[192, 192\]"):
        import_head(written, tiny_backbone())


@pytest.mark.parametrize("name", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_variants_are_refused(written, name):
    change_config(written, **{name: True})
    with pytest.raises(ValueError, match=f"is a head with {name}, which heads here do not have"):
        import_head(written, tiny_backbone())


def test_an_unwritten_norm_before_residual_counts_as_in_vllm(written):
    change_config(written, norm_before_residual=None)
    with pytest.raises(ValueError, match=r"a head with norm_before_residual.* write false there"):
        import_head(written, tiny_backbone())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers.0.self_attn.q_proj.bias", torch.ones(192), r"q_proj.bias \[192\] has no place"),
        ("layers.0.mlp.up_proj.weight", None, r"layers.0.mlp.up_proj.weight \[576, 192\] is missing"),
        ("layers.0.self_attn.k_proj.weight", torch.ones(192, 384), r"is \[192, 384\], not \[64, 384\]"),
        ("fc.weight", None, r"is no head that can be read: 'eagle3' with weights such as \['d2t'"),
        ("d2t", None, "drafts 266 of the verifier's 799 ids, and its d2t, .* has 0"),
        ("d2t", torch.full((266,), 700), "266 different ids were given.* ids end below 799"),
    ],
    ids=["bias", "missing", "heads", "fc", "no d2t", "d2t"],
)
def test_weights_without_a_place_are_named(written, name, value, message):
    assert len(VOCABULARY) == 266
    change_weights(written, **{name: value})
    with pytest.raises(ValueError, match=message):
        import_head(written, tiny_backbone())


def test_other_algorithms_are_refused(written):
    change_config(written, speculators_model_type="dflash")
    with pytest.raises(ValueError, match="is no head that can be read: 'dflash'"):
        import_head(written, tiny_backbone())


def test_pickled_and_missing_files_are_named(written):
    (written / WEIGHTS).rename(written / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"holds pytorch_model\.bin\. Only safetensors .*save_file"):
        import_head(written, tiny_backbone())
    (written / CONFIG).unlink()
    with pytest.raises(FileNotFoundError, match=r"holds neither a draft head nor a config\.json"):
        import_head(written, tiny_backbone())
