"""Floating point operations and memory traffic: a product of matrices [a, b] x [b, c] counts 2abc."""

from __future__ import annotations

from collections.abc import Sequence

from tiger.planning.memory import chunk_of
from tiger.planning.shapes import Shape
from tiger.planning.workload import Pass, Workload


def attention_flops(shape: Shape, runs: Sequence[Pass]) -> int:
    """Scores and weighted sums: 4 L (H x head size) queries keys, masked places included."""
    return sum(4 * shape.layers * shape.queries * run.rows * run.queries * run.keys for run in runs)


def language_flops(shape: Shape, runs: Sequence[Pass]) -> int:
    """Language layers without the head: 2 x parameters of their matrices x tokens, and attention."""
    tokens = sum(run.rows * run.queries for run in runs)
    return 2 * shape.linear * tokens + attention_flops(shape, runs)


def head_flops(shape: Shape, tokens: int) -> int:
    """Vocabulary logits: 2 D V per token."""
    return 2 * shape.head * tokens


def forward_flops(shape: Shape, rows: int, queries: int, keys: int) -> int:
    """A decoding pass of `queries` tokens per row that attend to `keys` tokens, with logits for each."""
    return language_flops(shape, [Pass(rows, queries, keys)]) + head_flops(shape, rows * queries)


def vision_flops(shape: Shape, visual_tokens: int, images: int) -> int:
    """The tower on `images` pictures of N tokens each, all patches of a picture attending to one another."""
    patches = visual_tokens * shape.merge
    attention = 4 * shape.tower_layers * shape.tower_hidden * patches**2
    return images * (2 * shape.tower_patch * patches + 2 * shape.tower_token * visual_tokens + attention)


def route_flops(shape: Shape, visual_tokens: int, routes: int) -> int:
    """Queries and scores of `routes` routes over N tokens: 2 D^2 + 2 D N each."""
    return routes * (2 * shape.hidden**2 + 2 * shape.hidden * visual_tokens)


def weight_bytes(shape: Shape, width: int) -> int:
    """Bytes of weights that a decoding pass reads: language layers and output matrix."""
    return width * (shape.linear + shape.head)


def forward_bytes(shape: Shape, rows: int, keys: int, width: int) -> int:
    """Traffic of a decoding pass: the weights once, and each row's keys and values of all L layers."""
    return weight_bytes(shape, width) + rows * keys * 2 * shape.layers * shape.keys * width


def guidance_flops(shape: Shape, run: Pass, layers: int) -> int:
    """Attention recomputed for guidance: query and key projections and scores of the last `layers` layers."""
    projections = 2 * shape.hidden * (shape.queries + shape.keys) * run.queries
    return layers * run.rows * (projections + 2 * shape.queries * run.queries * run.keys)


def training_flops(
    verifier: Shape,
    drafter: Shape,
    work: Workload,
    align: bool,
    reference: bool,
    compared: bool,
    guidance_layers: int,
    frozen_base: bool = False,
    recompute: bool = False,
    train_vision: bool = False,
    cached: bool = False,
) -> int:
    """One training step.

    Verifier: tower, prompt and answer, guidance, in alignment the blocks, and logits of the block tokens.
    Drafter: tower, then three times (forward, gradient of inputs, gradient of weights) its passes, logits and
    routing; twice where the base is frozen under LoRA, and once more where layers are recomputed. Alignment
    adds the sampling passes and one pass of the reference. Where
    the loss comes in several chunks, the backward pass makes its logits again.

    Args:
        verifier: Sizes of the verifier.
        drafter: Sizes of the drafter.
        work: The step.
        align: Whether this is alignment.
        reference: Whether a divergence to the warm-started drafter is computed.
        compared: Whether alignment compares whole distributions with the verifier's.
        guidance_layers: Verifier layers whose attention is recomputed, 0 without guidance.
        frozen_base: Whether only adapters learn.
        recompute: Whether layers are recomputed in the backward pass.
        train_vision: Whether the drafter's tower learns.
        cached: Whether a teacher cache stands in for the verifier.
    """
    runs, judged = work.drafter_passes(), work.verifier_passes(align)
    routes = work.batch * work.num_anchors if work.routed else 0
    tower = vision_flops(drafter, work.visual_tokens, work.batch)
    layers, head = language_flops(drafter, runs), head_flops(drafter, work.scored)
    routing = route_flops(drafter, work.visual_tokens + 1, routes)
    routing += 2 * drafter.hidden**2 * (work.visual_tokens + 1) * work.batch if routes else 0
    factor = 2 if frozen_base else 3
    again = int(chunk_of(drafter.vocab, work.scored) < work.scored)
    total = 0
    if not cached:
        taught = align + (compared or not align) * (1 + again)  # judging, and in the loss
        total += vision_flops(verifier, work.visual_tokens, work.batch)
        total += language_flops(verifier, judged) + taught * head_flops(verifier, work.scored)
        total += guidance_flops(verifier, judged[0], guidance_layers)
    total += tower * (3 if train_vision else 1) + 3 * routing
    total += (factor + recompute) * layers + (factor + again) * head
    if align:
        total += language_flops(drafter, work.sampling_passes()) + head
        total += layers + (1 + again) * head if reference else 0
    return total
