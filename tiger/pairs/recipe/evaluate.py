"""`python -m tiger.pairs.recipe.evaluate`: exact match of a model's greedy answers on held-out pictures."""

from __future__ import annotations

import argparse
from collections import defaultdict

from PIL import Image

from data_modules.synthetic.world import KINDS, SPLITS, generate
from tiger.backbones.base import Prompt
from tiger.backbones.loading import load_backbone
from tiger.decoding.autoregressive import AutoregressiveDecoder


def exact_match(model: str, num_prompts: int, batch_size: int = 32) -> dict[str, float]:
    """Share of answers that equal the reference word for word, per kind and over all.

    Args:
        model: Folder, hub id or shipped name.
        num_prompts: Test pictures, all kinds in turn, one question each.
        batch_size: Prompts answered at once.
    """
    decoder = AutoregressiveDecoder(load_backbone(model), max_new_tokens=96)
    hits: dict[str, list[bool]] = defaultdict(list)
    samples = [generate(SPLITS["test"][i], KINDS[i % len(KINDS)]) for i in range(num_prompts)]
    for start in range(0, num_prompts, batch_size):
        part = samples[start : start + batch_size]
        prompts = [Prompt(s.turns[0].question, (Image.fromarray(s.image),), id=str(s.seed)) for s in part]
        for sample, answer in zip(part, decoder.generate(prompts), strict=True):
            hits[sample.kind].append(answer.text == sample.turns[0].answer)
    table = {kind: sum(values) / len(values) for kind, values in hits.items()}
    return table | {"all": sum(map(sum, hits.values())) / num_prompts}


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["tiny/verifier", "tiny/vanilla"])
    parser.add_argument("--num_prompts", type=int, default=600)
    args = parser.parse_args()
    print("| model | " + " | ".join((*KINDS, "all")) + " |")
    print("|---" * (len(KINDS) + 2) + "|")
    for model in args.models:
        table = exact_match(model, args.num_prompts)
        print(
            f"| {model} | " + " | ".join(f"{table[kind]:.1%}" for kind in (*KINDS, "all")) + " |", flush=True
        )


if __name__ == "__main__":
    main()
