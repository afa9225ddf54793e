"""`python -m tiger.pairs.recipe.ship SOURCE TARGET`: copies a model or drafter with bfloat16 weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from tiger.backbones.folders import CONFIG, open_to_readers
from tiger.backbones.loading import load_backbone
from tiger.drafting.saving import SETTINGS_FILE, load_drafter, save_drafter


def ship(source: Path, target: Path) -> None:
    """Writes a folder of half the size that loads like the source."""
    if (source / SETTINGS_FILE).exists():
        notes = json.loads((source / SETTINGS_FILE).read_text())
        drafter = load_drafter(str(source)).to(torch.bfloat16)
        save_drafter(drafter, target, **notes)
        return
    backbone = load_backbone(str(source)).to(torch.bfloat16)
    backbone.model.save_pretrained(target)
    backbone.processor.save_pretrained(target)
    open_to_readers(target, CONFIG)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    ship(args.source, args.target)


if __name__ == "__main__":
    main()
