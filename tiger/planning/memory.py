"""Bytes of weights, caches, activations and logits, as formulas of a model's sizes.

Letters: L layers, D hidden, I inner, Q width of all query heads, C width of all key heads, H heads,
V vocabulary. "Mixed" is autocast: weights, norms and residuals in 4 bytes, matrix products in 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiger.planning.shapes import Shape
from tiger.planning.workload import Pass

CHUNK = 2**26  # logits of one model that `tiger.training.losses.chunked` holds at once
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
# Per weight with its scales: in 4 bits one byte per 64 weights, and those in blocks of 256 with 4 bytes each.
BITS = {"4bit": 4 + 8 / 64 + 32 / (64 * 256), "8bit": 8}


def cache_bytes(shape: Shape, rows: int, tokens: int, width: int) -> int:
    """Keys and values: 2 L C per token and row."""
    return 2 * shape.layers * shape.keys * rows * tokens * width


def layer_bytes_per_token(shape: Shape, mixed: bool, frozen: bool = False) -> int:
    """What one decoder layer keeps of each token for the backward pass.

    Two norms keep input, normalised input and output (the input of the matrices); queries and keys are kept
    before their norm, normalised, and queries also rotated; attention keeps its output, the gated MLP its two
    products, the activation and the gated product: in fp32

        4 (6 D + 4 Q + 2 C + 4 I), and 4 (6 D + 2 Q + 4 I) without norms of queries and keys.

    Mixed, each matrix that reads a norm's output keeps a 2-byte copy of its own: 26 D + 10 Q + 6 C + 8 I, and
    26 D + 4 Q + 8 I without norms of queries and keys. Norms that do not learn keep no normalised values:
    4 (2 D + Q + C) less.
    """
    normed = shape.queries + shape.keys if shape.normed else 0
    less = 4 * (2 * shape.hidden + normed) if frozen else 0
    if mixed:
        heads = 10 * shape.queries + 6 * shape.keys if shape.normed else 4 * shape.queries
        return 26 * shape.hidden + heads + 8 * shape.inner - less
    heads = 4 * shape.queries + 2 * shape.keys if shape.normed else 2 * shape.queries
    return 4 * (6 * shape.hidden + heads + 4 * shape.inner) - less


def layer_bytes_per_key(shape: Shape, mixed: bool) -> int:
    """What attention of one layer keeps of each key: K and V repeated for all query heads, 2 Q wide."""
    if not shape.grouped and not mixed:
        return 0  # the cache's own tensors
    return 2 * shape.queries * (2 if mixed else 4)


def layer_bytes_per_pair(shape: Shape, gated: bool, fused: bool, mixed: bool) -> int:
    """What one layer keeps per query and key.

    A fused kernel keeps the mask. Without one, a mask with a gradient makes torch keep every head's weights.
    """
    return 4 * shape.heads if gated and not fused else 2 if mixed else 4


def kept_cache_bytes(shape: Shape, runs: Sequence[Pass], mixed: bool) -> int:
    """The drafter's caches in training: 2 L C per token, keys in fp32, values in the width of products.

    The text's cache, and that of the last pass where it continues the text.
    """
    kept = {run.rows * run.keys for run in (runs[0], runs[-1]) if run is runs[0] or run.keys > run.queries}
    return sum(kept) * shape.layers * shape.keys * (4 + (2 if mixed else 4))


def layer_bytes(shape: Shape, run: Pass, mixed: bool, fused: bool, frozen: bool = False) -> int:
    """What one layer keeps of a pass: queries x per token + keys x per key + queries x keys x per pair.

    Mixed, the matrices of a layer that does not learn are kept in 2 bytes by every pass, as autocast converts
    them each time; those that learn are converted once per step.
    """
    layer = run.queries * layer_bytes_per_token(shape, mixed, frozen)
    layer += run.keys * layer_bytes_per_key(shape, mixed)
    layer += run.queries * run.keys * layer_bytes_per_pair(shape, run.gated, fused, mixed)
    return run.rows * layer + (2 * shape.linear // shape.layers if frozen and mixed else 0)


def activation_bytes(
    shape: Shape,
    runs: Sequence[Pass],
    mixed: bool,
    fused: bool,
    recompute: bool = False,
    frozen: bool = False,
) -> int:
    """What passes with gradients keep until the backward pass, their caches apart.

    All layers, and 3 D in fp32 per token for the final norm. Layers that are recomputed keep their inputs,
    4 D per token.
    """
    total = 0
    for run in runs:
        layer = run.rows * run.queries * 4 * shape.hidden
        if not recompute:
            layer = layer_bytes(shape, run, mixed, fused, frozen)
        total += shape.layers * layer + run.rows * run.queries * 12 * shape.hidden
    return total


def tower_bytes(shape: Shape, visual_tokens: int, images: int, mixed: bool) -> int:
    """What a learning vision tower keeps per patch.

    11 widths and 2 MLP widths per layer: inputs and outputs of two norms, queries, keys and values, both
    rotated, attention before and after it is put together, MLP before and after its activation. 16 widths per
    visual token, 4 per patch, in the merger.
    """
    layer = 11 * shape.tower_hidden + 2 * shape.tower_inner
    per_patch = shape.tower_layers * layer + 16 * shape.tower_hidden // shape.merge
    return images * visual_tokens * shape.merge * per_patch * (3 if mixed else 4)


def reading_bytes(shape: Shape, run: Pass, guided: bool, width: int) -> int:
    """Working set of the frozen verifier while it reads prompts and answers.

    Residual, norm and MLP, (3 D + 3 I) per token; the mask per query and key; with guidance three copies of
    all heads' attention in fp32, and two of their mean.
    """
    pairs = run.rows * run.queries * run.keys
    attention = pairs * (12 * shape.heads + 8) if guided else 0
    return run.rows * run.queries * (3 * shape.hidden + 3 * shape.inner) * width + pairs * width + attention


def chunk_of(vocab: int, positions: int) -> int:
    """Positions whose logits are held at once."""
    return min(positions, max(1, CHUNK // vocab))


def kd_logit_bytes(vocab: int, positions: int, mixed: bool) -> tuple[int, int]:
    """Working set of the KL divergence of verifier and drafter over one chunk of block tokens, V each.

    Verifier: logits (2 bytes if mixed) over the temperature, log p and p. Drafter: logits, the same over the
    temperature, log q, log p - log q, and its product with p.
    """
    half, count = (2 if mixed else 4), chunk_of(vocab, positions) * vocab
    return count * (half + 8), count * (2 * half + 12)


def cached_logit_bytes(vocab: int, positions: int) -> int:
    """Working set of the divergence from a teacher cache over one chunk of block tokens, V each.

    The drafter's log q, and the same without the tokens that are kept; in the backward pass, the gradients of
    both and their sum.
    """
    return chunk_of(vocab, positions) * vocab * 20


def align_logit_bytes(
    vocab: int, judged: int, positions: int, mixed: bool, reference: bool, compared: bool
) -> tuple[int, int]:
    """Working set of alignment over one chunk of block tokens, V each; the two are never held at once.

    Verifier, while it judges: logits and log p, and if mixed the logits in fp32. Drafter: logits and log q;
    if it is compared with the verifier, the verifier's logits, p and q of their overlap, and log q, p and
    log p - log q of their divergence; then either two more for the entropy, or, with a divergence to the
    reference, its logits, both log-probabilities, q, their difference and its product with q.
    """
    half = 2 if mixed else 4
    drafter = half + 4 + (half + 20 if compared else 0) + (half + 20 if reference else 8)
    judging = chunk_of(vocab, judged) * vocab * (10 if mixed else 8)
    return judging, chunk_of(vocab, positions) * vocab * drafter
