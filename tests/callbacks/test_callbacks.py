import json
import os
import sys

import numpy as np
import pytest
import torch
from helpers import tiny_backbone
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import callbacks.export_drafter
from callbacks import (
    AcceptedLengthHistogram,
    ExportDrafter,
    HyperParameters,
    Provenance,
    RandomState,
    RouteChange,
    RoutingImages,
    StopOnBadLoss,
    ThroughputMonitor,
    TigerProgressBar,
    TraceText,
)
from callbacks.accepted_length import lengths
from callbacks.routing_images import COLOUR, draw_rounds
from data_modules.collate import Batch, Example
from tiger.backbones.bank import VisualBank
from tiger.backbones.base import Prompt
from tiger.backbones.grids import Grid
from tiger.decoding.records import Generation, Round
from tiger.evaluation.provenance import git_state


class Bank4x4(torch.nn.Module):
    """Stands for a drafter: sixteen visual tokens on a grid, and one weight to train."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    viewer = property(lambda self: self)

    def prepare(self, prompt):
        return None

    def encode(self, inputs):
        return [VisualBank(torch.zeros(16, 2), torch.zeros(3, 16), (), (Grid(1, 4, 4),))]


class Toy(LightningModule):
    block_size = 8

    def __init__(self, bad_step=-1):
        super().__init__()
        self.drafter, self.bad_step, self.draws = Bank4x4(), bad_step, []
        self.quality = [1.0, 3.0, 2.0]

    stage = "Toy"

    training_seconds = 12.34

    def whole_drafter(self):
        return self.drafter

    def training_step(self, batch, batch_idx):
        self.draws.append(torch.rand(()).item())
        loss = self.drafter.weight.square().sum()
        self.log("reward/mean", 0.5, prog_bar=True)
        return loss * float("nan") if self.global_step == self.bad_step else loss

    def validation_step(self, batch, batch_idx):
        torch.rand(3)
        rounds = [Round([1] * 8, n, 5, 0, [0, 5, 16], [0.1, 0.9, 0.5]) for n in (0, 2, 8)]
        return [Generation(example.prompt.id, [1] * 13, rounds=rounds) for example in batch.examples]

    def on_validation_epoch_end(self):
        self.log("quality", self.quality[self.current_epoch % 3])

    def configure_optimizers(self):
        return torch.optim.SGD(self.drafter.parameters(), lr=0.1)


def loader(count=3):
    picture = Image.new("RGB", (32, 32), "blue")
    prompts = [Prompt("?", (picture,), id=f"row-{n}") for n in range(count)]
    samples = [Example(prompt, torch.ones(5, dtype=torch.long), "toy", "count") for prompt in prompts]
    return torch.utils.data.DataLoader(samples, batch_size=1, collate_fn=Batch)


def fit(folder, *used, task=None, **options):
    options = {"max_epochs": 1, "enable_progress_bar": False, "num_sanity_val_steps": 0} | options
    logger = TensorBoardLogger(folder, name="", version="")
    trainer = Trainer(
        accelerator="cpu",
        logger=logger,
        callbacks=list(used),
        enable_model_summary=False,
        log_every_n_steps=1,
        default_root_dir=folder,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in used),
        **options,
    )
    trainer.fit(task or Toy(), loader(), loader())
    logger.experiment.flush()
    return trainer


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_accepted_lengths_are_logged_as_scalars_and_as_a_histogram(tmp_path):
    trainer = fit(tmp_path, AcceptedLengthHistogram())
    found = {key: round(float(value), 4) for key, value in trainer.callback_metrics.items()}
    assert found["accept/length"] == round(10 / 3, 4)
    assert (found["accept/ge_2"], found["accept/ge_4"], found["accept/ge_8"]) == (0.6667, 0.3333, 0.3333)
    assert found["accept/position_1"] == 0.6667
    assert found["accept/position_3"] == 0.5
    assert found["accept/position_8"] == 1.0
    histogram = events(tmp_path).Histograms("accept/lengths")[0].histogram_value
    assert histogram.num == 9
    assert histogram.sum == 30


def test_lengths_invert_the_shares():
    assert lengths({1: 2 / 3, 2: 2 / 3, 3: 1 / 3}, 3).tolist() == [0, 2, 3]


def test_validation_without_rounds_logs_nothing(tmp_path):
    task = Toy()
    task.validation_step = lambda batch, batch_idx: [Generation("a", [1])]
    trainer = fit(tmp_path, AcceptedLengthHistogram(), task=task)
    assert not any(key.startswith("accept/") for key in trainer.callback_metrics)


def test_routing_images_are_written_for_the_first_examples(tmp_path):
    fit(tmp_path, RoutingImages(num_examples=2, num_rounds=3))
    assert set(events(tmp_path).Tags()["images"]) == {"router/0", "router/1"}


def test_drawn_cells_show_where_and_how_strong():
    picture = Image.new("RGB", (32, 32), "blue")
    entry = Round([1], 1, 2, 0, [0, 5, 16], [0.1, 0.9, 0.5])
    strip = np.asarray(draw_rounds(picture, [Grid(1, 4, 4)], [entry, entry], scale=1)).astype(int)
    assert strip.shape == (32, 32 * 2 + 6, 3)
    weak, strong, untouched = strip[6, 6], strip[12, 12], strip[20, 20]
    assert tuple(untouched) == (0, 0, 255)
    assert abs(strong - COLOUR).sum() < abs(weak - COLOUR).sum() < abs(untouched - np.array(COLOUR)).sum()
    assert tuple(strip[0, 31]) != (0, 0, 255)  # the frame of the global token


def test_drawn_cells_of_a_coarse_and_a_fine_view():
    picture = Image.new("RGB", (32, 32), "blue")
    grids = [Grid(1, 2, 2), Grid(1, 4, 4, newlines=True, again=True)]
    coarse, fine, newline = (
        np.asarray(draw_rounds(picture, grids, [Round([1], 1, 2, 0, [token], [0.5])], 1))[..., 0] > 0
        for token in (3, 4 + 5 + 2, 4 + 4)
    )
    assert coarse.nonzero()[0].min() == coarse.nonzero()[1].min() == 16
    assert coarse.sum() == 16 * 16
    assert (fine.nonzero()[0].min(), fine.nonzero()[1].min(), fine.sum()) == (8, 16, 8 * 8)
    assert (newline.nonzero()[0].max(), newline.nonzero()[1].min(), newline.sum()) == (7, 29, 8 * 3)


def test_route_change_is_the_share_of_tokens_that_the_round_before_had_not(tmp_path):
    routes = [[0, 1, 2], [0, 1, 3], [], [4, 5, 3]]
    task = Toy()
    task.validation_step = lambda batch, batch_idx: [
        Generation("a", [1], rounds=[Round([1], 0, 5, 0, route) for route in routes])
    ]
    assert fit(tmp_path, RouteChange(), task=task).callback_metrics["router/changed"] == (1 + 2) / 6
    task.validation_step = lambda batch, batch_idx: [Generation("a", [1], rounds=[Round([1], 0, 5, 0)])]
    assert "router/changed" not in fit(tmp_path, RouteChange(), task=task).callback_metrics


def test_traces_show_each_round_of_the_first_answers(tmp_path):
    task = Toy()
    task.verifier = tiny_backbone()
    first, second, third = (task.verifier.tokenizer.encode(word)[0] for word in ("red", "blue", "*"))
    rounds = [Round([second, third], 1, first, first), Round([third], 1, -1, first)]
    task.validation_step = lambda batch, batch_idx: [
        Generation(batch.examples[0].prompt.id, [first, second, first, third], "red", rounds=rounds)
    ]
    fit(tmp_path, TraceText(num_examples=2), task=task)
    log = events(tmp_path)
    assert set(log.Tags()["tensors"]) == {"trace/0/text_summary", "trace/1/text_summary"}
    lines = log.Tensors("trace/0/text_summary")[0].tensor_proto.string_val[0].decode().splitlines()
    piece = task.verifier.tokenizer.decode
    assert lines[0] == "**?**"
    assert lines[-2:] == [
        f"| 1 | {piece([second])} | {piece([first])} | \\{piece([third])} |",
        f"| 2 | \\{piece([third])} |  |  |",
    ]


def test_hyper_parameters_stand_beside_final_metrics(tmp_path):
    config = {
        "model": {"class_path": "Toy", "init_args": {"optimizer": {"init_args": {"lr": 0.1}}, "no": None}}
    }
    config |= {"data": {"init_args": {"num_train": 3}}, "trainer": {"max_epochs": 1, "precision": "32-true"}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    fit(tmp_path, AcceptedLengthHistogram(), HyperParameters())
    log = events(tmp_path)
    start = HParamsPluginData.FromString(
        log.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    ).session_start_info.hparams
    assert set(start) == {"model.class_path", "model.optimizer.lr", "data.num_train", "trainer.precision"}
    assert start["model.optimizer.lr"].number_value == 0.1
    assert log.Scalars("final/accept/length")[0].value == pytest.approx(10 / 3)
    assert log.Scalars("final/reward/mean")[0].value == 0.5


def test_hyper_parameters_need_a_config(tmp_path):
    fit(tmp_path, AcceptedLengthHistogram(), HyperParameters())
    assert not [tag for tag in events(tmp_path).Tags()["scalars"] if tag.startswith("final/")]


def test_throughput_counts_examples_tokens_and_memory(tmp_path):
    fit(tmp_path, ThroughputMonitor(every_n_batches=2))
    log = events(tmp_path)
    speed = {name: log.Scalars(f"speed/{name}_per_second")[0].value for name in ("examples", "tokens")}
    assert speed["tokens"] == pytest.approx(5 * speed["examples"], rel=1e-3)
    assert 0.05 < log.Scalars("memory/peak_rss_gib")[0].value < 200
    with pytest.raises(ValueError, match="every_n_batches is 0"):
        ThroughputMonitor(0)


def test_progress_bar_shows_accepted_length_and_reward(tmp_path):
    bar = TigerProgressBar()
    trainer = fit(tmp_path, AcceptedLengthHistogram(), bar, enable_progress_bar=True)
    shown = bar.get_metrics(trainer, trainer.lightning_module)
    assert (shown["AccLen"], shown["reward"]) == ("3.33", "0.50")
    assert "v_num" not in shown


def test_provenance_names_versions_state_and_hardware_and_keeps_earlier_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "tiger", "fit", "--config", "a file.yaml"])
    (tmp_path / "config.yaml").write_text("seed_everything: 0\n")
    fit(tmp_path, Provenance())
    fit(tmp_path, Provenance())
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert record["config"] == "seed_everything: 0\n"
    assert record["world_size"] == 1
    assert record["hardware"]["cpus"] == os.cpu_count()
    assert record["command"].endswith(" -m tiger fit --config 'a file.yaml'")
    assert len(record["earlier"]) == 1
    assert "earlier" not in record["earlier"][0]
    assert not list(tmp_path.glob("*.tmp"))
    assert "provenance/text_summary" in events(tmp_path).Tags()["tensors"]


def test_git_state_outside_of_a_checkout_is_empty(tmp_path):
    assert git_state(tmp_path) == {}


@pytest.fixture
def saved(monkeypatch):
    calls = []

    def save(drafter, folder, **notes):
        calls.append(notes)
        (folder / "weights").write_text(str(len(calls)))

    monkeypatch.setattr(callbacks.export_drafter, "save_drafter", save)
    return calls


def test_drafter_is_exported_at_the_end_and_replaced_as_a_whole(tmp_path, saved):
    stale = tmp_path / "drafter"
    stale.mkdir()
    (stale / "stale").touch()
    fit(tmp_path, ExportDrafter())
    assert saved == [{"step": 3, "task": "Toy", "training_seconds": 12.3}]
    assert [path.name for path in stale.iterdir()] == ["weights"]
    assert not [path for path in tmp_path.iterdir() if path.suffix in {".tmp", ".old"}]


def test_an_export_that_fails_leaves_the_old_drafter(tmp_path, monkeypatch):
    def fail(drafter, folder, **notes):
        raise OSError("disk full")

    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "weights").write_text("old")
    monkeypatch.setattr(callbacks.export_drafter, "save_drafter", fail)
    with pytest.raises(OSError, match="disk full"):
        fit(tmp_path, ExportDrafter())
    assert (tmp_path / "drafter" / "weights").read_text() == "old"


def test_drafter_of_the_best_validation_is_kept(tmp_path, saved):
    fit(tmp_path, ExportDrafter(monitor="quality"), max_epochs=3)
    assert [notes["quality"] for notes in saved] == [1.0, 3.0]
    saved.clear()
    fit(tmp_path, ExportDrafter(monitor="quality", mode="min"), max_epochs=3)
    assert [notes["quality"] for notes in saved] == [1.0]
    with pytest.raises(ValueError, match="monitors 'qualty', which was not logged; logged are: quality"):
        fit(tmp_path, ExportDrafter(monitor="qualty"))


def test_bad_loss_stops_the_run_before_it_reaches_the_weights(tmp_path):
    task = Toy(bad_step=2)
    checkpoint = ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=1, save_last=True)
    with pytest.raises(
        ValueError, match=r"loss is nan at step 2 on the examples row-2.*last\.ckpt.*learning rate"
    ):
        fit(tmp_path, StopOnBadLoss(), checkpoint, task=task)
    assert torch.isfinite(task.drafter.weight).all()
    kept = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert kept["global_step"] == 2
    with pytest.raises(ValueError, match="No checkpoint was written before"):
        fit(tmp_path, StopOnBadLoss(), task=Toy(bad_step=0))


@pytest.mark.parametrize("validate_every", [1, 3])
def test_validation_leaves_no_trace_in_the_draws_of_training(tmp_path, validate_every):
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    task = Toy()
    fit(tmp_path, RandomState(), task=task, val_check_interval=validate_every)
    assert task.draws[1:] == pytest.approx(torch_continuation(task.draws[0], expected, task.draws))


def torch_continuation(first, expected, draws):
    """The draws that follow `first` when nothing else draws in between."""
    generator = torch.Generator()
    generator.manual_seed(3)
    stream = [torch.rand((), generator=generator).item() for _ in range(50)]
    start = stream.index(first)
    return stream[start + 1 : start + len(draws)]


def test_random_state_survives_a_checkpoint(tmp_path):
    first, state = Toy(), RandomState()
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    fit(tmp_path / "a", state, checkpoint, task=first)
    np.random.rand(4)
    again = Toy()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=[RandomState()],
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(again, loader(), ckpt_path=str(tmp_path / "step=1.ckpt"), weights_only=True)
    assert again.draws == first.draws[1:]


def test_run_folder_without_logger_is_the_root_folder(tmp_path):
    from callbacks.run_folder import run_folder, tensorboard

    trainer = Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path, enable_checkpointing=False)
    assert run_folder(trainer) == tmp_path
    assert tensorboard(trainer) is None
