"""Gradient checkpointing: the same losses and gradients from fewer kept activations."""

import copy

import pytest
import torch
from helpers import fresh_backbone, prompts
from standins import FAMILIES, save_standin

from tiger.backbones.checkpointing import checkpoint_layers
from tiger.drafting.blocks import read_blocks, read_texts, route
from tiger.drafting.lora import Lora, add_adapters
from tiger.drafting.routed import RoutedDrafter
from tiger.drafting.saving import load_drafter


def drafter(layout, lora):
    backbone = fresh_backbone("drafter", 1, 3)
    torch.manual_seed(0)  # after the model, which draws only when it is not cached
    made = RoutedDrafter(backbone, "routed", layout, num_routed=5).train()
    if lora:
        add_adapters(made, Lora(rank=3))
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
    return made


def loss_of(made):
    """A loss through the text, its cache, the routed tokens and two groups of blocks."""
    generator = torch.Generator().manual_seed(0)
    answers = [torch.randint(10, 250, (7,), generator=generator) for _ in range(3)]
    with torch.no_grad():
        inputs, banks = made.encode(prompts(3))
    texts = read_texts(made, inputs, banks, answers)
    routes = route(made, texts, torch.tensor([[1, 4], [0, 5], [2, 2]]))
    blocks = torch.randint(10, 250, (3, 2, 2, 4), generator=generator)
    logits = made.backbone.logits(read_blocks(made, texts, routes, blocks))
    return -logits.log_softmax(-1).gather(-1, blocks[..., None]).mean()


def kept_bytes(made):
    """Bytes of distinct tensors that the forward pass keeps for the backward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in made.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(made)
    return sum(kept.values())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_loss_and_gradients_are_the_same(layout, lora):
    same_gradients(drafter(layout, lora), drafter(layout, lora))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_same_gradients(family, tmp_path):
    path = save_standin(family, tmp_path, "drafter")
    twins = []
    for _ in range(2):
        torch.manual_seed(0)
        twins.append(load_drafter(path, selector="routed", layout="suffix", num_routed=5).train())
    same_gradients(*twins)


def same_gradients(plain, checkpointed):
    checkpoint_layers(checkpointed.backbone)
    losses = [loss_of(made) for made in (plain, checkpointed)]
    assert losses[0] == losses[1]
    for loss in losses:
        loss.backward()
    for (name, left), right in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None), name
        if left.grad is not None:
            torch.testing.assert_close(left.grad, right.grad, atol=1e-7, rtol=1e-5, msg=name)
    assert checkpointed.router.query.weight.grad.norm() > 0


@pytest.mark.parametrize("layout", ["suffix", "inline"])
def test_less_is_kept(layout):
    plain, checkpointed = drafter(layout, False), drafter(layout, False)
    checkpoint_layers(checkpointed.backbone)
    assert kept_bytes(checkpointed) < 0.7 * kept_bytes(plain)


def test_state_names_stay_and_a_copy_runs_its_own_layers():
    made = drafter("suffix", False)
    names = made.state_dict().keys()
    checkpoint_layers(made.backbone)
    assert made.state_dict().keys() == names
    twin = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in twin.backbone.model.get_decoder().parameters():
            parameter.mul_(1.5)
        assert loss_of(twin) != loss_of(made)
    twin.zero_grad()
    loss_of(twin).backward()
    assert all(p.grad is None for p in made.parameters())
