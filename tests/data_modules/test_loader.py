"""The training loader: order, ranks, and resuming inside an epoch, alone and under Lightning."""

import copy
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from data_modules.loader import ResumableLoader

SIZE = 11


def loader(size=SIZE, batch_size=2, **options):
    return ResumableLoader(range(size), batch_size, list, **options)


def test_an_epoch_has_every_example_once_and_epochs_differ():
    data = loader()
    epochs = []
    for epoch in range(2):
        data.set_epoch(epoch)
        epochs.append(list(data))
        assert len(epochs[-1]) == len(data) == 6
    assert sorted(chain(*epochs[0])) == sorted(chain(*epochs[1])) == list(range(SIZE))
    assert epochs[0] != epochs[1]
    assert list(loader()) == epochs[0] != list(loader(seed=1))


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 4))
def test_ranks_get_equally_many_different_examples(size, batch_size, world_size):
    if -(-size // batch_size) < world_size:
        with pytest.raises(ValueError, match="Use more examples"):
            loader(size, batch_size, world_size=world_size)
        return
    parts = [loader(size, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    batches = [part.batches(3) for part in parts]
    assert {len(part) for part in batches} == {len(parts[0])}
    seen = list(chain(*chain(*batches)))
    assert len(set(seen)) == len(seen) > size - batch_size * world_size


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_new_loader_continues_behind_the_last_batch(num_workers):
    data = loader(num_workers=num_workers)
    data.set_epoch(4)
    taken, whole = iter(data), data.batches(4)
    assert [next(taken), next(taken)] == whole[:2]
    resumed = loader(num_workers=num_workers)
    resumed.load_state_dict(copy.deepcopy(data.state_dict()))
    assert resumed.state_dict() == data.state_dict()
    resumed.set_epoch(4)
    assert list(resumed) == whole[2:]
    assert list(resumed) == whole
    assert len(resumed) == 6


def test_a_later_epoch_starts_at_its_first_batch():
    data = loader()
    data.load_state_dict(loader().state_dict() | {"epoch": 1, "taken": 4})
    data.set_epoch(2)
    assert list(data) == data.batches(2)


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 3}, {"size": 12}, {"identity": "other"}])
def test_another_order_is_refused(change):
    name = next(iter(change)).replace("batch_size", "global_batch_size")
    with pytest.raises(ValueError, match=f"made with {name} = "):
        loader(**change).load_state_dict(loader().state_dict())


def test_another_number_of_ranks_continues_if_the_global_batch_stays():
    alone = loader(batch_size=4)
    taken = iter(alone)
    next(taken)
    parts = [loader(batch_size=2, rank=rank, world_size=2) for rank in range(2)]
    for part in parts:
        part.load_state_dict(alone.state_dict())
    assert [a + b for a, b in zip(*parts, strict=True)] == list(taken)
    with pytest.raises(ValueError, match="made with global_batch_size = 4"):
        loader(batch_size=4, world_size=2).load_state_dict(alone.state_dict())


def test_global_random_state_is_untouched():
    before = torch.get_rng_state()
    list(loader())
    assert torch.equal(before, torch.get_rng_state())


class Toy(LightningModule):
    """Its weights depend on the order of batches."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append([int(i) for i in batch])
        return ((self.weight - float(sum(batch))) ** 2).sum()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def fit(folder, toy, ckpt_path=None, **options):
    checkpoints = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[checkpoints], num_sanity_val_steps=0, **options,
    )  # fmt: skip
    data = loader(batch_size=3, identity="toy")
    trainer.fit(toy, data, val_dataloaders=torch.utils.data.DataLoader(range(2)), ckpt_path=ckpt_path)
    return toy


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"val_check_interval": 2}], ids=str)
def test_a_resumed_fit_equals_the_uninterrupted_one(tmp_path, options):
    whole = fit(tmp_path, Toy(), **options)
    assert len(whole.seen) == 12
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) >= 6
    for path in paths:
        step = int(path.stem.split("=")[1])
        progress = torch.load(path, weights_only=True)["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = progress["total"]["ready"]
        resumed = fit(tmp_path / "resumed", Toy(), path, **options)
        assert whole.seen[done:] == resumed.seen, step
        assert torch.equal(whole.weight, resumed.weight), step
