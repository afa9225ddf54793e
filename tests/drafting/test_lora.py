import pytest
import torch
from helpers import fresh_backbone, prompts
from safetensors import safe_open
from standins import FAMILIES, save_standin

from tiger.backbones.base import assemble
from tiger.drafting.lora import Lora, add_adapters, fold_adapters, merged_weights, without_adapters
from tiger.drafting.routed import RoutedDrafter
from tiger.drafting.saving import load_drafter, save_drafter


def adapted(trained=True, **options):
    """A drafter with adapters, and what its logits were before; `trained` moves the adapters off zero."""
    drafter = RoutedDrafter(fresh_backbone("drafter", 1, 2)).eval()
    before = logits(drafter)
    add_adapters(drafter, Lora(rank=4, alpha=8, **options))
    if trained:
        stir(drafter)
    return drafter, before


@torch.no_grad()
def stir(drafter):
    """Moves the adapters off zero."""
    for name, parameter in drafter.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.3)


@torch.no_grad()
def logits(drafter):
    backbone = drafter.backbone
    inputs = [backbone.prepare(prompt) for prompt in prompts(3)]
    batch = assemble(inputs, backbone.encode(inputs), [backbone.embed(entry.ids) for entry in inputs])
    hidden = backbone.run_assembled(batch)
    return torch.cat([backbone.logits(row[:n]) for row, n in zip(hidden, batch.lengths, strict=True)])


def test_new_adapters_change_nothing_and_are_all_that_learns():
    drafter, before = adapted(trained=False)
    assert torch.equal(logits(drafter), before)
    learning = {name for name, p in drafter.named_parameters() if p.requires_grad}
    assert {name for name in learning if not name.startswith("router.")} == {
        name for name, _ in drafter.named_parameters() if ".lora_" in name
    }
    assert not any("visual" in name for name in learning)
    layers = {name.split(".lora_")[0].split(".")[-1] for name in learning if ".lora_" in name}
    assert layers == set(Lora().targets)


def test_without_adapters_is_the_model_before_them():
    drafter, before = adapted()
    after = logits(drafter)
    assert (after - before).abs().max() > 0.1
    learning = [p.requires_grad for p in drafter.parameters()]
    with without_adapters(drafter):
        assert torch.equal(logits(drafter), before)
    with pytest.raises(AttributeError), without_adapters(drafter):
        logits(None)
    assert torch.equal(logits(drafter), after)
    assert [p.requires_grad for p in drafter.parameters()] == learning


def test_a_saved_drafter_is_plain_and_gives_the_adapted_logits(tmp_path):
    drafter, before = adapted()
    expected, state = logits(drafter), {k: v.clone() for k, v in drafter.state_dict().items()}
    save_drafter(drafter, tmp_path)
    loaded = load_drafter(str(tmp_path))
    torch.testing.assert_close(logits(loaded), expected, atol=1e-5, rtol=1e-5)
    assert (logits(loaded) - before).abs().max() > 0.1
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert not any("lora" in name or "base_layer" in name for name in file.keys())  # noqa: SIM118
    assert drafter.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in drafter.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_of_every_family_are_saved_as_plain_weights(family, tmp_path):
    # In float64, since random models amplify the rounding of sums taken in another order.
    drafter = load_drafter(save_standin(family, tmp_path / "plain", "drafter"), "float64")
    before = logits(drafter)
    add_adapters(drafter, Lora(rank=4))
    assert torch.equal(logits(drafter), before)
    stir(drafter)
    expected = logits(drafter)
    assert (expected - before).abs().max() > 0.01
    save_drafter(drafter, tmp_path / "adapted")
    found = logits(load_drafter(str(tmp_path / "adapted"), "float64"))
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_weights_that_are_not_adapted_are_not_copied():
    drafter, _ = adapted(targets=["q_proj"])
    model = drafter.backbone.model
    merged = merged_weights(model)
    own = {value.data_ptr() for value in model.state_dict().values()}
    assert {name for name, value in merged.items() if value.data_ptr() not in own} == {
        f"model.language_model.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)
    }
    assert merged.keys() == fresh_backbone("drafter", 1, 2).model.state_dict().keys()


def test_folded_adapters_leave_a_plain_model():
    drafter, _ = adapted()
    expected = logits(drafter)
    fold_adapters(drafter)
    torch.testing.assert_close(logits(drafter), expected, atol=1e-5, rtol=1e-5)
    plain = fresh_backbone("drafter", 1, 2).model
    assert drafter.backbone.model.state_dict().keys() == plain.state_dict().keys()
    add_adapters(drafter, Lora(rank=2))  # a later stage's


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["q_proj", "query"]}, r"targets query match nothing.*down_proj, gate_proj.*q_proj"),
        ({"targets": ["qkv"]}, "targets qkv match nothing"),  # a layer of the vision tower
        ({"targets": []}, r"targets \(none\) match nothing"),
        ({"dropout": 1.0}, "0 <= dropout < 1, got 4 and 1.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        adapted(**options)


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match="rank >= 1"):
        add_adapters(RoutedDrafter(fresh_backbone("drafter", 1, 2)), Lora(rank=0))
