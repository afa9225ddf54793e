"""The `generate` verb: images, videos and a question in, a streamed answer out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tiger.backbones.base import Prompt
from tiger.backbones.images import load_image
from tiger.backbones.loading import Quantization, choose_device, load_backbone
from tiger.backbones.videos import load_video
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.pruners import is_pruner
from tiger.decoding.records import Generation
from tiger.decoding.speculative import Acceptance, SpeculativeDecoder
from tiger.drafting.routed import RoutedDrafter
from tiger.evaluation.building import build_decoder, load_method
from tiger.evaluation.timing import limit_threads, measure
from tiger.metrics.acceptance import AcceptanceMetrics
from tiger.report.pieces import piece
from tiger.report.trace_page import Trace, grids_of, write_trace_page


def generate(
    prompt: str,
    images: list[str] | str | None = None,
    videos: list[str] | str | None = None,
    verifier: str = "tiny/verifier",
    drafter: str | None = "tiny/tiger",
    block_size: int = 8,
    num_routed: int | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    system: str = "",
    video_fps: float = 1.0,
    max_frames: int = 64,
    compare: bool = False,
    trace: Path | None = None,
    dtype: str = "float32",
    num_threads: int | None = None,
    verifier_quantization: Quantization | None = None,
    device: str | None = None,
    compile_drafter: bool = False,
    confidence_threshold: float = 0.0,
    acceptance: Acceptance = "exact",
) -> Generation:
    """Answers a question about images and videos; the text appears as rounds complete, then what it took.

    Args:
        prompt: The question.
        images: One image file, or several as `'[a.png, b.png]'`, read in this order.
        videos: The same for video files, which are read after the images (Qwen families).
        verifier: Folder, hub id or shipped name of the verifier.
        drafter: The same for the drafter or a draft head, or `prompt_lookup`, `token_recycling`, `racer` or a
            file of `configs/drafter`; null decodes autoregressively. With `sparsevlm`, `vispruner` or a file
            of `configs/pruner` the verifier reads fewer visual tokens, and the answer is another one's.
        block_size: Tokens drafted in one round; in a tree those of its longest branch.
        num_routed: Visual tokens routed per round (K); null for the drafter's own setting.
        max_new_tokens: Longest answer, tokens.
        temperature: 0 for greedy decoding.
        top_k: Sample among the k likeliest tokens, 0 for all.
        top_p: Sample among the likeliest tokens with this much probability, 1 for all.
        seed: Seed of sampling.
        system: System message.
        video_fps: Frames of a video to read per second.
        max_frames: Most frames to read of a video; a longer one is read at a lower rate.
        compare: Also time autoregressive decoding, warmed up and interleaved, and print the speedup.
        trace: HTML file to write, on which every round can be looked at.
        dtype: Name of a torch dtype.
        num_threads: Threads of torch; null for its own choice.
        verifier_quantization: Store the verifier's weights in 4 or 8 bits; needs the extra `quantization`.
        device: Where to compute: cpu, cuda or cuda:N; null for a GPU if there is one.
        compile_drafter: Compile the drafter's steps, which takes a while before the first token.
        confidence_threshold: A routed drafter or head ends a block where the product of its likeliest tokens'
            chances falls below this; 0 drafts whole blocks.
        acceptance: `typical_lossy` accepts drafts above temperature 0 that the verifier finds likely enough,
            as Medusa does; answers then no longer follow the verifier.

    Returns:
        The answer with its round records.

    Raises:
        FileNotFoundError: If an image, a video or a model folder is missing.
        ValueError: If there is neither image nor video, one cannot be read, the verifier's family reads no
            videos, the device is not there, or a setting is out of range.
    """
    limit_threads(num_threads)
    place = choose_device(device)
    pictures, films = _paths(images), _paths(videos)
    if not pictures + films:
        raise ValueError("A prompt needs an image or a video; give --images FILE or --videos FILE.")
    request = Prompt(
        prompt,
        tuple(map(load_image, pictures)),
        system,
        (pictures + films)[0].name,
        tuple(load_video(path, video_fps, max_frames) for path in films),
    )
    sampling = Sampling(temperature, top_k, top_p)
    backbone = load_backbone(verifier, dtype, quantization=verifier_quantization, device=place)
    baseline = AutoregressiveDecoder(backbone, max_new_tokens, sampling, seed)
    method = None
    if drafter is not None:
        options = (dtype, num_routed, compile_drafter, confidence_threshold)
        method = load_method(drafter, backbone, *options)
    decoder = build_decoder(backbone, method, block_size, max_new_tokens, sampling, seed, acceptance)
    reader = method.backbone if isinstance(method, RoutedDrafter) else backbone
    answer = decoder.generate([request], stream(backbone.tokenizer, sys.stdout.write))[0]
    speedup = None
    if compare and drafter is not None:
        timings = measure({"plain": baseline.generate, "drafted": decoder.generate}, [request])
        speedup = timings["drafted"].speedup_over(timings["plain"])
    is_lossy = is_pruner(drafter) or (isinstance(decoder, SpeculativeDecoder) and decoder.is_lossy)
    print(f"\n\n{summary(answer, block_size, speedup, is_lossy)}")
    if trace is not None:
        write_trace_page(
            trace, [Trace(request, answer, grids_of(reader, request), speedup)], backbone.tokenizer
        )
        print(f"Trace written to {trace}")
    return answer


def _paths(names: list[str] | str | None) -> list[Path]:
    """One file, several or none, as a list."""
    return list(map(Path, [names] if isinstance(names, str) else names or []))


def stream(tokenizer: object, write: Callable[[str], object]) -> Callable[[int, list[int]], None]:
    """A listener that writes text as it is decided, without special tokens."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    tokens: list[int] = []

    def listen(index: int, new: list[int]) -> None:
        for token in new:
            if token not in special:
                write(piece(tokenizer, tokens, token))
                tokens.append(token)
        sys.stdout.flush()

    return listen


def summary(answer: Generation, block_size: int, speedup: float | None = None, is_lossy: bool = False) -> str:
    """Rounds, AccLen and speed of one answer in a line, and whether it may differ from the verifier's."""
    metric = AcceptanceMetrics(block_size)
    metric.update([answer])
    result = metric.compute()
    parts = [f"{len(answer.tokens)} tokens"]
    if answer.rounds:
        parts += [f"{result['rounds']} rounds", f"AccLen {result['acclen']:.2f} of {block_size}"]
    parts += [
        f"{len(answer.tokens) / answer.seconds:.0f} tokens/s",
        f"first token after {answer.prefill_seconds:.3f} s",
    ]
    if speedup is not None:
        parts.append(f"{speedup:.2f}x autoregressive speed")
    if is_lossy:
        parts.append("lossy: not the verifier's own answer")
    return " · ".join(parts)
