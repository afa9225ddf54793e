"""EAGLE-3 heads in the layout of vLLM's speculators (version 0.9), which `vllm serve` reads.

Layer ids mean the same as here: the hidden state before that layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tiger.backbones.folders import CONFIG, open_to_readers
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.eagle3 import Eagle3, warn_without_end
from tiger.drafting.heads.layers import layer_config

WEIGHTS = "model.safetensors"
TYPE = "speculators_model_type"
LAYERS = "eagle_aux_hidden_state_layer_ids"
# Variants of EAGLE-3, none of which the class here has.
VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad")
# Entry of config.json that other readers pass over: the settings of the head that was written.
OWN = "tiger_settings"


def save_speculators(head: DraftHead, folder: Path, verifier_name: str) -> None:
    """Writes an EAGLE-3 head; a draft vocabulary without end tokens gives a warning.

    Args:
        head: The head.
        folder: Target folder, created if missing.
        verifier_name: Where readers find the verifier: a hub id or a folder.

    Raises:
        ValueError: If it is no EAGLE-3 head, or one that other readers would feed differently.
    """
    if not isinstance(head, Eagle3):
        raise ValueError(
            f"The format 'speculators' holds EAGLE-3 heads, and this is a {head.method!r} head. Use the "
            "format 'tiger'."
        )
    layers, verifier = head.feature_layers, head.verifier
    if not layers or list(layers) != sorted(set(layers)):
        raise ValueError(
            f"The head reads layers {list(layers)}; readers of the format 'speculators' join one or more "
            "different layers in ascending order. Train the head that way, or use the format 'tiger'."
        )
    ids = torch.arange(head.lm_head.out_features) if head.draft_ids is None else head.draft_ids.cpu()
    warn_without_end(verifier, ids.tolist())
    weights = {name: value.cpu().contiguous() for name, value in head.state_dict().items()}
    weights.pop("draft_ids", None)
    drafted = torch.zeros(verifier.text_config.vocab_size, dtype=torch.bool)
    drafted[ids] = True
    weights |= {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(_config(head, verifier_name), indent=2) + "\n")
    open_to_readers(folder, CONFIG)


def _config(head: Eagle3, verifier_name: str) -> dict[str, Any]:
    """The entries of config.json."""
    verifier = head.verifier
    layer = layer_config(verifier, vocab_size=verifier.text_config.vocab_size, dtype=head.dtype)
    chain = {"speculative_tokens": head.tree.depth + 1, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3Speculator"],
        TYPE: "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": head.lm_head.out_features,
        **dict.fromkeys(VARIANTS, False),
        "target_hidden_size": None,
        LAYERS: list(head.feature_layers),
        "transformer_layer_config": layer.to_diff_dict(),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", **chain}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier_name, "architectures": [type(verifier.model).__name__]},
        },
        OWN: head.settings,
    }
