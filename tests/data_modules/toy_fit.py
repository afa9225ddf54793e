"""A fit that can be killed, whose weight depends on the order of its data."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from data_modules import Batch


class Killed(Exception):
    """Stands for the end of the process."""


class Toy(LightningModule):
    """Its weight depends on the order of responses."""

    def __init__(self, kill_at=-1):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.kill_at, self.seen = kill_at, []

    def training_step(self, batch, batch_idx):
        if len(self.seen) == self.kill_at:
            raise Killed
        self.seen.append([example.prompt.id for example in batch])
        target = sum(example.response.float().mean() for example in batch)
        return ((self.weight - target) ** 2).sum()

    def validation_step(self, batch, batch_idx):
        assert isinstance(batch, Batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def fit(data, toy, checkpoints, ckpt_path=None, precision="32-true"):
    """Trains on a data module for two epochs, saving after every second batch."""
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(checkpoints, save_last=True, every_n_train_steps=2, save_top_k=0)],
        num_sanity_val_steps=0, precision=precision,
    )  # fmt: skip
    trainer.fit(toy, datamodule=data, ckpt_path=ckpt_path)
    return toy
