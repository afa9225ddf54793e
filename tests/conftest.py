"""Settings for every test: offline, one thread, fixed seeds, no process group left behind."""

import os
import shutil
import tempfile

# Before the first import of transformers or datasets, which read them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="datasets-")  # nothing of an earlier run
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import random

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples on every run; a slow example is no failure.
settings.register_profile("tiger", derandomize=True, deadline=None)
settings.load_profile("tiger")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_sessionfinish():
    shutil.rmtree(os.environ["HF_DATASETS_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_process_group_left():
    yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
