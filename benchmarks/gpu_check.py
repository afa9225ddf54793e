"""Times every pass of a round at true model sizes with random weights: no download, minutes on a GPU.

Acceptance is scripted (`support/scripted.py`), while every pass, cache and mask is that of decoding.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch
from support.scripted import ScriptedDrafter, ScriptedVerifier
from transformers import Qwen3VLForConditionalGeneration

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.folders import resolve
from tiger.backbones.loading import load_processor
from tiger.backbones.qwen3_vl import Qwen3VLBackbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import PhaseTimer
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.decoding.verifier import Verifier
from tiger.drafting.routed import RoutedDrafter
from tiger.evaluation.timing import limit_threads
from tiger.planning import flops
from tiger.planning.configs import load_config
from tiger.planning.shapes import shape_of


@dataclass(frozen=True)
class Size:
    """Models and lengths of a check.

    Attributes:
        verifier: Configuration and number of language layers (0: all) of the verifier.
        drafters: The same of each drafter.
        grid: Patches of the prompt's image: rows and columns.
        words: Text tokens of the prompt.
        answer: Answer tokens.
        copied: Bytes that the copy kernel moves.
        repeats: Repeats of each timed pass.
        batches: Batch sizes.
        accepted: Accepted lengths per round to try.
        block_size: Tokens drafted in one round.
    """

    verifier: tuple[str, int]
    drafters: dict[str, tuple[str, int]]
    grid: tuple[int, int]
    words: int
    answer: int
    copied: int
    repeats: int
    batches: tuple[int, ...] = (1, 8, 16)
    accepted: tuple[int, ...] = (0, 2, 4, 8)
    block_size: int = 8


REAL = Size(
    ("Qwen/Qwen3-VL-8B-Instruct", 0),
    {"4B": ("Qwen/Qwen3-VL-4B-Instruct", 0), "two layers": ("Qwen/Qwen3-VL-4B-Instruct", 2)},
    grid=(64, 64),
    words=64,
    answer=49,
    copied=2**31,
    repeats=20,
)
TOY = Size(
    ("tiny/verifier", 4),
    {"half": ("tiny/verifier", 2), "two layers": ("tiny/vanilla", 2)},
    grid=(8, 8),
    words=16,
    answer=19,
    copied=2**25,
    repeats=2,
    accepted=(0, 4, 8),
)


def build(
    name: str,
    layers: int,
    device: torch.device,
    dtype: torch.dtype,
    kind: type[Qwen3VLBackbone] = Qwen3VLBackbone,
) -> Qwen3VLBackbone:
    """A backbone with random weights, made on the device; it never ends an answer.

    Args:
        name: Model whose configuration gives the sizes.
        layers: Language layers; 0 for as many as the configuration says.
        device: Where it lives.
        dtype: Type of its weights.
        kind: Class of the backbone.
    """
    config = load_config(name)
    if layers:
        config.text_config.num_hidden_layers = layers
        config.vision_config.deepstack_visual_indexes = config.vision_config.deepstack_visual_indexes[:layers]
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration._from_config(config, dtype=dtype, attn_implementation="sdpa")
    backbone = kind(model, load_processor(resolve("tiny/verifier"))).eval()
    backbone.eos_ids = ()
    return backbone


def requests(backbone: Backbone, size: Size, count: int) -> list[Prompt]:
    """Prompts of noise: one image, then words."""
    config = backbone.model.config
    vision, (rows, columns) = config.vision_config, size.grid
    generator = torch.Generator().manual_seed(0)
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    image = [config.image_token_id] * (rows * columns // vision.spatial_merge_size**2)
    prompts = []
    for index in range(count):
        words = torch.randint(8, backbone.vocab_size // 2, (size.words,), generator=generator)
        words[words == config.image_token_id] = 8
        entry = backbone.unbatch(
            torch.cat([torch.tensor(image), words])[None],
            pixel_values=torch.randn(rows * columns, values, generator=generator),
            image_grid_thw=torch.tensor([[1, rows, columns]]),
        )[0]
        prompts.append(Prompt("", id=str(index), prepared=entry))
    return prompts


def seconds(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Median time of a call, after one untimed call."""
    clock, times = PhaseTimer(device), []
    for _ in range(repeats + 1):
        start = clock.now()
        run()
        times.append(clock.now() - start)
    return statistics.median(times[1:])


def bandwidth(size: Size, device: torch.device) -> float:
    """Bytes per second that a copy kernel reads and writes."""
    source = torch.zeros(size.copied // 2, dtype=torch.float16, device=device)
    target = torch.empty_like(source)
    return 2 * size.copied / seconds(lambda: target.copy_(source), size.repeats, device)


@torch.inference_mode()
def time_passes(
    verifier: Qwen3VLBackbone, drafter: RoutedDrafter, prompts: Sequence[Prompt], size: Size
) -> dict[str, float]:
    """Seconds of each pass of a round, everything that the pass does on the host included."""
    device, count = verifier.device, len(prompts)
    reserve = size.answer + size.block_size + 1
    judge = Verifier(verifier)
    state, logits = judge.prefill([verifier.prepare(prompt) for prompt in prompts], reserve)
    roots = logits.argmax(-1)
    block = roots[:, None].repeat(1, size.block_size + 1)
    generators = [torch.Generator(device) for _ in prompts]
    drafting = drafter.begin(prompts, reserve, Sampling(), generators)
    drafter.commit(drafting, roots[:, None].tolist())
    timer, phases = PhaseTimer(device), []

    def propose() -> None:
        timer.lap()
        drafter.propose(drafting, size.block_size, timer)
        phases.append(timer.lap())

    def draft_step() -> None:
        hidden = drafting.text.step(drafter.backbone, roots[:, None])
        drafter.backbone.logits(hidden).argmax(-1)

    round_of_drafts = seconds(propose, size.repeats, device)
    return {
        "batch": count,
        "autoregressive step": seconds(lambda: judge.run(state, block[:, :1]), size.repeats, device),
        "verify": seconds(lambda: judge.run(state, block), size.repeats, device),
        "draft step": seconds(draft_step, size.repeats, device),
        "routing": statistics.median(phase["route"] for phase in phases),
        "draft round": round_of_drafts,
    }


def limits(
    verifier: Qwen3VLBackbone, drafter: RoutedDrafter, size: Size, count: int, speed: float, width: int
) -> dict[str, float]:
    """Seconds that memory traffic alone would take."""
    visual = size.grid[0] * size.grid[1] // verifier.model.config.vision_config.spatial_merge_size**2
    big, small = shape_of(verifier.model.config), shape_of(drafter.backbone.model.config)
    seen, text = visual + size.words, size.words + 2
    return {
        "autoregressive step": flops.forward_bytes(big, count, seen + 1, width) / speed,
        "verify": flops.forward_bytes(big, count, seen + size.block_size + 1, width) / speed,
        "draft step": flops.forward_bytes(small, count, text, width) / speed,
    }


def predicted_speedup(accepted: float, passes: dict[str, float]) -> float:
    """The cost model: AccLen + 1 autoregressive steps in the time of a block of drafts and a verification."""
    return (accepted + 1) * passes["autoregressive step"] / (passes["draft round"] + passes["verify"])


def decode_speedups(
    verifier: Qwen3VLBackbone,
    drafter: RoutedDrafter,
    prompts: Sequence[Prompt],
    size: Size,
    passes: dict[str, float],
) -> list[dict[str, float]]:
    """Time of decoding behind prefill at each accepted length, beside the cost model.

    Raises:
        RuntimeError: If an answer is not the script, or a round accepts another number of tokens.
    """
    plain = AutoregressiveDecoder(verifier, size.answer).generate(prompts)
    slow = plain[0].seconds - plain[0].prefill_seconds
    rows = []
    for accepted in size.accepted:
        decoder = SpeculativeDecoder(
            verifier, ScriptedDrafter(drafter, accepted), size.block_size, size.answer
        )
        answers = decoder.generate(prompts)
        if [a.tokens for a in answers] != [a.tokens for a in plain]:
            raise RuntimeError(f"Scripted answers differ from autoregressive ones at AccLen {accepted}.")
        whole = [item.accepted for answer in answers for item in answer.rounds[:-1]]
        if set(whole) - {accepted}:
            raise RuntimeError(f"Rounds accepted {sorted(set(whole))} tokens instead of {accepted}.")
        fast = answers[0].seconds - answers[0].prefill_seconds
        num_rounds = len(answers[0].rounds)
        # Tokens of the answer behind the first one, over rounds: the last round may be cut off.
        kept = (size.answer - 1) / num_rounds - 1
        rows.append(
            {
                "accepted": accepted,
                "speedup": slow / fast,
                "predicted": predicted_speedup(kept, passes),
                "round": fast / num_rounds,
            }
        )
    return rows


@torch.inference_mode()
def half_agreement(verifier: Qwen3VLBackbone, prompts: Sequence[Prompt], size: Size) -> float:
    """Share of greedy tokens of single steps that a pass over a whole block confirms."""
    plain = Qwen3VLBackbone(verifier.model, verifier.processor)
    plain.eos_ids = ()
    answers = [a.tokens for a in AutoregressiveDecoder(plain, size.answer).generate(prompts)]
    judge, tokens = Verifier(plain), torch.tensor(answers, device=plain.device)
    state, _ = judge.prefill([plain.prepare(prompt) for prompt in prompts], size.answer)
    same = []
    for start in range(0, size.answer - 1, size.block_size + 1):
        block = tokens[:, start : start + size.block_size + 1][:, : size.answer - 1 - start]
        best = judge.run(state, block).argmax(-1)
        judge.commit(state, [block.shape[1]] * len(answers))
        same.append((best == tokens[:, start + 1 : start + 1 + block.shape[1]]).flatten())
    return float(torch.cat(same).float().mean())


def exact_in_full_precision(device: torch.device) -> bool:
    """Whether speculative and autoregressive answers are equal in fp32, toy sizes, ragged acceptance.

    Raises:
        RuntimeError: If they are not.
    """
    verifier = build(*TOY.verifier, device, torch.float32)
    with torch.no_grad():  # larger weights, so that random models do not repeat one token
        for parameter in verifier.model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.5)
    small = build(*TOY.verifier, device, torch.float32)
    small.model.load_state_dict(verifier.model.state_dict())
    with torch.no_grad():  # a drafter that is right now and then
        for parameter in small.model.model.language_model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * (parameter.std() if parameter.ndim > 1 else 0))
    prompts = requests(verifier, TOY, 3)
    plain = AutoregressiveDecoder(verifier, 24).generate(prompts)
    for selector, layout in (("full", "inline"), ("routed", "suffix")):
        drafter = RoutedDrafter(small, selector, layout).to(device).eval()
        answers = SpeculativeDecoder(verifier, drafter, 8, 24).generate(prompts)
        if [a.tokens for a in answers] != [a.tokens for a in plain]:
            raise RuntimeError(
                f"fp32 answers differ with a {selector} drafter: {answers} instead of {plain}."
            )
    return True


def check(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Runs everything; prints tables on the way."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    speed, width = bandwidth(size, device), torch.finfo(dtype).bits // 8
    results: dict[str, Any] = {
        "hardware": name,
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "bandwidth_GBps": speed / 1e9,
        "fp32_exact": exact_in_full_precision(device),
        "drafters": {},
    }
    print(f"{name}, {results['dtype']}, copy kernel {speed / 1e9:.0f} GB/s; fp32 answers exact at toy size")
    verifier = build(*size.verifier, device, dtype, ScriptedVerifier)
    results["half_agreement"] = half_agreement(verifier, requests(verifier, size, 2), size)
    print(f"greedy tokens of single steps confirmed by a block pass: {results['half_agreement']:.1%}")
    for label, (model, layers) in size.drafters.items():
        backbone = build(model, layers, device, dtype)
        drafter = RoutedDrafter(backbone).to(device, dtype).eval()
        rows = [_measure(verifier, drafter, size, count, speed, width, label) for count in size.batches]
        results["drafters"][label] = rows
        del backbone, drafter
    return results


def _measure(
    verifier: Qwen3VLBackbone,
    drafter: RoutedDrafter,
    size: Size,
    count: int,
    speed: float,
    width: int,
    label: str,
) -> dict[str, Any]:
    """One drafter at one batch size."""
    prompts = requests(verifier, size, count)
    passes = time_passes(verifier, drafter, prompts, size)
    floor = limits(verifier, drafter, size, count, speed, width)
    curve = decode_speedups(verifier, drafter, prompts, size, passes)
    print(f"\ndrafter {label}, batch {count}\n  {'pass':22} {'ms':>9} {'limit ms':>9} {'of limit':>9}")
    for name, spent in passes.items():
        if name != "batch":
            limit = f"{1e3 * floor[name]:9.3f} {floor[name] / spent:9.1%}" if name in floor else ""
            print(f"  {name:22} {1e3 * spent:9.3f} {limit}")
    print(f"  {'AccLen':>8} {'round ms':>9} {'speedup':>8} {'predicted':>10}")
    for row in curve:
        print(
            f"  {row['accepted']:8} {1e3 * row['round']:9.2f} {row['speedup']:7.2f}x {row['predicted']:9.2f}x"
        )
    return {"passes": passes, "limits": floor, "speedups": curve}


def main() -> None:
    """Prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("real", "toy"), help="true sizes on a GPU, toy sizes without one")
    parser.add_argument("--device", help="a torch device; the GPU if there is one")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--quick", action="store_true", help="batch 1 and 8 only")
    options = parser.parse_args()
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    size = {"real": REAL, "toy": TOY}[options.size or ("real" if device.type == "cuda" else "toy")]
    if options.quick:
        size = replace(size, batches=(1, 8))
    if device.type == "cpu":
        limit_threads(1)
    start = time.perf_counter()
    results = check(size, device, getattr(torch, options.dtype))
    results["seconds"] = time.perf_counter() - start
    print(f"\n{results['seconds']:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
