"""Decoders by the name of what drafts, for `generate`, `benchmark` and the lmms-eval plug-in alike."""

from __future__ import annotations

from tiger.backbones.base import Backbone
from tiger.backbones.folders import resolve
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder, Reads
from tiger.decoding.pruners import build_pruner, decoder_options, is_pruner
from tiger.decoding.speculative import Acceptance, SpeculativeDecoder
from tiger.drafting.base import Drafter
from tiger.drafting.chain import check_threshold, end_early
from tiger.drafting.heads.saving import is_head, load_head
from tiger.drafting.methods import build_method
from tiger.drafting.saving import load_drafter

Decoder = AutoregressiveDecoder | SpeculativeDecoder


def load_method(
    name: str,
    verifier: Backbone,
    dtype: str = "float32",
    num_routed: int | None = None,
    compile_steps: bool = False,
    confidence_threshold: float = 0.0,
) -> Drafter | Reads:
    """What drafts for a verifier, or reads in its place.

    Args:
        name: Folder, hub id or shipped name of a model or a draft head; name or YAML file of a training-free
            method or a pruner.
        verifier: The verifier.
        dtype: Name of a torch dtype, for models; heads take the verifier's.
        num_routed: Visual tokens routed per round (K) of a routed drafter; None for its own setting.
        compile_steps: Whether the steps of a model are compiled.
        confidence_threshold: Where routed drafters and heads end a block early, see `Chain`.

    Returns:
        A drafter in evaluation mode on the verifier's device, or a pruned verifier.

    Raises:
        FileNotFoundError: If a folder or file is missing.
        ValueError: If it does not fit the verifier, or cannot take an option.
    """
    check_threshold(confidence_threshold)
    options = decoder_options(name)
    if num_routed is not None and (options is not None or is_head(resolve(name))):
        raise ValueError(
            f"{name} routes nothing, or as many tokens as it was trained with; leave num_routed out, or give "
            "a routed drafter."
        )
    if options is not None:
        return build_pruner(options, verifier) if is_pruner(name) else build_method(options)
    drafter: Drafter
    if is_head(folder := resolve(name)):
        drafter = load_head(folder, verifier)
    else:
        drafter = routed = load_drafter(name, dtype, num_routed=num_routed).to(verifier.device)
        if compile_steps:
            routed.compile_steps()
    end_early(drafter, confidence_threshold)
    return drafter


def build_decoder(
    verifier: Backbone,
    method: Drafter | Reads | None,
    block_size: int,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    acceptance: Acceptance = "exact",
) -> Decoder:
    """A decoder with what `load_method` gives; None decodes autoregressively.

    Raises:
        ValueError: If drafts are to be accepted but nothing drafts, or drafter and verifier do not fit.
    """
    if method is not None and not isinstance(method, Reads):
        return SpeculativeDecoder(
            verifier, method, block_size, max_new_tokens, sampling, seed, acceptance=acceptance
        )
    if acceptance != "exact":
        raise ValueError(f"acceptance is {acceptance!r}, but nothing drafts; name a drafter, or take exact.")
    return AutoregressiveDecoder(method or verifier, max_new_tokens, sampling, seed)
