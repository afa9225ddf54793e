"""Pruned verifiers by name. They answer differently from the verifier and are reported as lossy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tiger.backbones.base import Backbone
from tiger.decoding.autoregressive import Reads
from tiger.decoding.sparsevlm import SparseVLM
from tiger.decoding.vispruner import VisPruner
from tiger.drafting.methods import METHODS, build, method_options

PRUNERS: dict[str, Callable[..., Reads]] = {"sparsevlm": SparseVLM, "vispruner": VisPruner}


def decoder_options(name_or_file: str) -> dict[str, Any] | None:
    """The entry `method` and the options of a training-free drafter or a pruner, see `method_options`."""
    return method_options(name_or_file, (*METHODS, *PRUNERS))


def is_pruner(name_or_file: str | None) -> bool:
    """Whether a decoder is a pruned verifier."""
    options = None if name_or_file is None else decoder_options(name_or_file)
    return options is not None and options["method"] in PRUNERS


def build_pruner(options: Mapping[str, Any], backbone: Backbone) -> Reads:
    """The pruned verifier of `decoder_options`.

    Raises:
        ValueError: If an option is unknown or out of range.
    """
    return build(PRUNERS, options, backbone)
