"""Times greedy decoding end to end: transformers' generate, our autoregressive loop, and TIGER."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.loading import load_backbone
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import Generation
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.saving import load_drafter
from tiger.evaluation.prompts import DATASETS, load_prompts
from tiger.evaluation.timing import Run, Timing, limit_threads, measure

QUICK = {"num_prompts": 6, "repeats": 3}
FULL = {"num_prompts": 48, "repeats": 7}


def transformers_generate(backbone: Backbone, max_new_tokens: int) -> Run:
    """Transformers' own greedy loop for one prompt at a time, image processing included."""
    processor, model = backbone.processor, backbone.model

    def run(prompts: Sequence[Prompt]) -> list[Generation]:
        (prompt,) = prompts
        content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in prompt.images]
        messages = [{"role": "user", "content": [*content, {"type": "text", "text": prompt.text}]}]
        inputs = processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        ).to(backbone.device)
        with torch.inference_mode():
            output = model.generate(
                **inputs,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                eos_token_id=list(backbone.eos_ids),
                pad_token_id=backbone.tokenizer.pad_token_id,
            )
        return [Generation(prompt.id, output[0, inputs["input_ids"].shape[1] :].tolist())]

    return run


def compare(
    verifier: str,
    drafter: str,
    dataset: str,
    block_size: int,
    max_new_tokens: int,
    num_prompts: int,
    repeats: int,
) -> dict[str, Timing]:
    """Interleaved medians of the three loops at batch 1.

    Raises:
        RuntimeError: If their answers differ, since times of different work cannot be compared.
    """
    backbone = load_backbone(verifier)
    runs: dict[str, Run] = {
        "transformers": transformers_generate(backbone, max_new_tokens),
        "autoregressive": AutoregressiveDecoder(backbone, max_new_tokens).generate,
        "tiger": SpeculativeDecoder(backbone, load_drafter(drafter), block_size, max_new_tokens).generate,
    }
    prompts = load_prompts(dataset, num_prompts)
    for prompt in prompts:
        answers = {name: run([prompt])[0].tokens for name, run in runs.items()}
        if len(set(map(tuple, answers.values()))) > 1:
            raise RuntimeError(f"The answers to {prompt.id} differ: {answers}")
    return measure(runs, prompts, batch_size=1, repeats=repeats)


def main() -> None:
    """Prints one line per loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few prompts")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--verifier", default="tiny/verifier")
    parser.add_argument("--drafter", default="tiny/tiger")
    parser.add_argument("--dataset", choices=tuple(DATASETS), default="synthetic_long")
    parser.add_argument("--block_size", type=int, default=8)
    parser.add_argument("--max_new_tokens", type=int, default=96)
    parser.add_argument("--num_threads", type=int, default=1)
    options = parser.parse_args()
    limit_threads(options.num_threads)
    size = QUICK if options.quick else FULL
    names = ("verifier", "drafter", "dataset", "block_size", "max_new_tokens")
    timings = compare(**{name: getattr(options, name) for name in names}, **size)
    plain = timings["autoregressive"]
    results = {
        name: {
            "tokens_per_second": timing.tokens_per_second,
            "latency_s": timing.latency,
            "speedup": timing.speedup_over(plain),
            "other_share": timing.other_share,
        }
        for name, timing in timings.items()
    }
    print(f"{'loop':15} {'tokens/s':>9} {'latency ms':>11} {'speedup':>8} {'other':>6}")
    for name, row in results.items():
        print(
            f"{name:15} {row['tokens_per_second']:9.0f} {1000 * row['latency_s']:11.1f} "
            f"{row['speedup']:7.2f}x {row['other_share']:6.1%}"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"settings": vars(options) | {"json": None}, "results": results}, indent=2)
        )


if __name__ == "__main__":
    main()
