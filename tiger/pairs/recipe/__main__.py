"""`python -m tiger.pairs.recipe verifier|drafter --output DIR`: trains one model of the tiny pair, resumable.

`torchrun --nproc_per_node 2 -m tiger.pairs.recipe verifier` lets two processes share the steps.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import Qwen3VLProcessor

from tiger.backbones.folders import resolve
from tiger.backbones.loading import load_backbone
from tiger.pairs.recipe.architecture import build_model, build_processor, build_tokenizer
from tiger.pairs.recipe.packing import Packer
from tiger.pairs.recipe.train import DenseHead, train_language, train_tower, world

SEEDS = {"verifier": 0, "drafter": 50_000_000}
LANGUAGE_SEED = 10_000_000
STEPS = {"verifier": {"tower": 1150, "language": 4000}, "drafter": {"tower": 1150, "language": 1300}}


def main() -> None:
    """Trains the tower, then the language model, and writes a checkpoint that loads like a hub model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=tuple(SEEDS))
    parser.add_argument("--output", type=Path, default=Path("runs/zoo"))
    parser.add_argument("--tower_steps", type=int, default=None)
    parser.add_argument("--language_steps", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--no_compile", action="store_true", help="train without torch.compile (no C++ compiler)"
    )
    parser.add_argument(
        "--init", default=None, help="go on from this trained model (folder, hub id or shipped name)"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    tokenizer_folder = args.output / "tokenizer"
    if not (args.init or tokenizer_folder.exists()):
        if args.role == "drafter":
            raise FileNotFoundError(
                f"There is no tokenizer in {tokenizer_folder}, which drafter and verifier share. Train the "
                "verifier with this --output first, or save an existing verifier's processor there."
            )
        build_processor(build_tokenizer()).save_pretrained(tokenizer_folder)
    processor = Qwen3VLProcessor.from_pretrained(resolve(args.init) if args.init else tokenizer_folder)
    packer = Packer(processor)
    seed, steps = SEEDS[args.role], STEPS[args.role]
    model = build_model(args.role, processor.tokenizer, seed=seed)
    head = DenseHead(processor.tokenizer, model.config.text_config.hidden_size)
    folder = args.output / args.role
    if args.init:
        model.load_state_dict(load_backbone(args.init).model.state_dict())
    else:
        train_tower(model, head, packer, folder / "tower", args.tower_steps or steps["tower"], seed)
    train_language(
        model,
        head,
        packer,
        folder / ("continued" if args.init else "language"),
        args.language_steps or steps["language"],
        seed + LANGUAGE_SEED * (2 if args.init else 1),  # other pictures than the first run
        compiled=not args.no_compile,
    )
    if world()[0] == 0:
        model.to(torch.bfloat16).save_pretrained(folder)
        processor.save_pretrained(folder)


if __name__ == "__main__":
    main()
