"""The table of docs/monitoring.md lists exactly what runs log."""

import re
from pathlib import Path

import pytest
import torch
from helpers import save_pair
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tiger.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
EVERY_BATCH = "{class_path: callbacks.ThroughputMonitor, init_args: {every_n_batches: 1}}"
WEIGHTS = ("soft_ce", "ce", "tv", "feature", "list_mle", "prefix", "guidance")
RUNS = {
    "tiny_kd": ["ce_weight=1"],
    "tiny_align": ["group_size=2", "num_anchors=2", "beta=0.1"],
    "tiny_tiger_head": [*(f"{name}_weight=1" for name in WEIGHTS), "num_anchors=2"],
}


@pytest.fixture(scope="module")
def tags(tmp_path_factory):
    """Everything that a run of each kind logs, numbers at the end as N."""
    folder = tmp_path_factory.mktemp("runs")
    pair, found = save_pair(folder, layers=2), set()
    for name, options in RUNS.items():
        own = [word for word in pair if name != "tiny_tiger_head" or ".drafter=" not in word]
        main(
            [
                "fit",
                f"--config={ROOT / 'configs' / 'experiment' / name}.yaml",
                *own,
                *(f"--model.init_args.{option}" for option in options),
                "--model.init_args.verifier_dtype=float32",
                f"--trainer.callbacks+={EVERY_BATCH}",
                "--trainer.max_steps=2",
                "--trainer.val_check_interval=2",
                "--trainer.log_every_n_steps=1",
                "--trainer.enable_progress_bar=false",
                f"--trainer.logger.init_args.save_dir={folder}",
            ]
        )
        log = EventAccumulator(str(folder / name))
        log.Reload()
        for kind in ("scalars", "histograms", "images", "tensors"):
            found |= {shown(tag) for tag in log.Tags()[kind]}
        assert "_hparams_/session_end_info" in log.summary_metadata
    return found


def shown(tag):
    return re.sub(r"\d+$", "N", tag.removesuffix("/text_summary"))


def test_the_page_lists_the_tags_that_runs_log(tags):
    listed = set(re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE))
    if not torch.cuda.is_available():
        listed.remove("memory/peak_cuda_gib")
    assert tags == listed


def test_every_picture_of_the_page_is_there():
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", PAGE)
    assert len(pictures) >= 3
    assert all((ROOT / "docs" / name).is_file() for name in pictures)
