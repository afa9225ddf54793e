"""What cannot run on several processes says so before it starts."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from helpers import save_pair
from torch.distributed.device_mesh import init_device_mesh

from data_modules import SyntheticDataModule
from tiger.training import KDWarmStart
from tiger.training.checkpoints import fingerprint
from tiger.training.ranks import global_mean
from tiger.training.strategy import FSDP2Strategy, rekeyed


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


def test_remember_is_refused_where_weights_are_sharded(group, tmp_path):
    save_pair(tmp_path)
    task = KDWarmStart(str(tmp_path / "verifier"), str(tmp_path / "drafter"), remember=True)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    task._device_mesh = mesh
    with pytest.raises(ValueError, match=r"shards need every rank in every pass. Set remember false"):
        task.configure_model()


def test_models_that_were_loaded_before_there_was_a_mesh_are_refused(group, tmp_path):
    save_pair(tmp_path)
    task = KDWarmStart(str(tmp_path / "verifier"), str(tmp_path / "drafter"))
    task.configure_model()
    task.configure_model()
    task._device_mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    with pytest.raises(ValueError, match="Give the trainer a new task"):
        task.configure_model()


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint file .*gone\.ckpt"):
        FSDP2Strategy().load_checkpoint(tmp_path / "gone.ckpt")


def test_fewer_validation_examples_than_processes_are_refused():
    module = SyntheticDataModule(num_validation=3, responses="dataset")
    module.setup("validate")
    for world_size, expected in ((2, [2, 1]), (3, [1, 1, 1])):
        found = []
        for rank in range(world_size):
            module.trainer = SimpleNamespace(global_rank=rank, world_size=world_size)
            found.append([example.prompt.id for batch in module.val_dataloader() for example in batch])
        assert [len(ids) for ids in found] == expected
        assert len({name for ids in found for name in ids}) == 3
    module.trainer = SimpleNamespace(global_rank=0, world_size=4)
    with pytest.raises(ValueError, match=r"3 validation examples do not give each of 4 processes one"):
        module.val_dataloader()


def test_an_exact_fingerprint_sees_what_signs_do_not():
    model = torch.nn.Linear(3, 2)
    signs, exact = fingerprint(model), fingerprint(model, exact=True)
    with torch.no_grad():
        model.weight *= 1.001
    assert fingerprint(model) == signs
    assert fingerprint(model, exact=True) != exact


def test_the_mean_of_no_values_is_a_zero_that_can_be_trained():
    weight = torch.ones(3, requires_grad=True)
    global_mean(weight[:0]).backward()
    assert weight.grad.tolist() == [0.0, 0.0, 0.0]
    assert global_mean(torch.tensor([1.0, 3.0])) == 2.0


def test_an_optimizer_state_is_renamed_and_numbered_again():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.Adam([weights[0]], lr=0.1)
    optimizer.add_param_group({"params": [weights[1]], "lr": 0.2})
    sum(weight.sum() for weight in weights).backward()
    optimizer.step()
    state = optimizer.state_dict()
    named = rekeyed(state, {0: "a", 1: "b"})
    assert [group["params"] for group in named["param_groups"]] == [["a"], ["b"]]
    assert rekeyed(named, {"a": 0, "b": 1}) == state
