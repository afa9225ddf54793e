"""What the tests of the benchmark on several sets share."""

import pytest
from sets_world import settings, write_world

from tiger.evaluation.runner import benchmark


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def done(world, tmp_path_factory):
    """Results of one run, and their folder."""
    output = tmp_path_factory.mktemp("results")
    return benchmark(**settings(world, output)), output
