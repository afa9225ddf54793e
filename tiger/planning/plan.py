"""Adds the formulas up: memory of a training stage and of decoding, what fits a card, work per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tiger.planning import flops, memory
from tiger.planning.shapes import Shape
from tiger.planning.workload import Pass, Workload

PARTS = ("weights", "gradients", "optimizer", "KV", "activations", "logits")
USABLE = 0.92  # of a card; the rest goes to its context, to kernels' workspaces and to fragmentation
LARGEST = 1 << 16


@dataclass(frozen=True)
class Stage:
    """How a drafter is trained.

    Attributes:
        align: Whether this is acceptance alignment; otherwise KD.
        reference: Whether there is a divergence to the warm-started drafter.
        compared: Whether alignment compares whole distributions with the verifier's (`overlap`, `kd_weight`).
        verifier_width: Bytes of a verifier weight.
        verifier_bits: Bits of the weights in its language layers; None as many as of the others.
        mixed: Whether products are in half precision (autocast).
        drafter_width: Bytes of a drafter weight, gradient and optimizer value.
        fused: Whether attention has a fused kernel for masks with gradients, as on GPUs.
        foreach: Whether the optimizer holds a copy of all gradients in its step, as on GPUs.
        states: Optimizer values per trainable parameter; 2 for Adam.
        guidance_layers: Verifier layers whose attention guides the router, 0 without guidance.
        train_vision: Whether the drafter's tower learns.
        adapters: Parameters of LoRA; None if all weights learn.
        recompute: Whether layers are recomputed in the backward pass.
        top_k: Tokens of each place that a teacher cache keeps; None where the verifier is asked.
    """

    align: bool
    reference: bool = False
    compared: bool = False
    verifier_width: int = 2
    verifier_bits: float | None = None
    mixed: bool = True
    drafter_width: int = 4
    fused: bool = True
    foreach: bool = True
    states: float = 2.0
    guidance_layers: int = 4
    train_vision: bool = False
    adapters: int | None = None
    recompute: bool = False
    top_k: int | None = None

    def trainable(self, drafter: Shape) -> int:
        """Parameters that learn: the router with the adapters, or with all but a frozen tower."""
        if self.adapters is not None:
            return self.adapters + drafter.router
        return drafter.parameters + drafter.router - (0 if self.train_vision else drafter.vision)

    def lesson_bytes(self, verifier: Shape, visual_tokens: int) -> int:
        """Bytes of what the verifier teaches at one answer token.

        Its hidden state, or k + 1 log-probabilities and k ids of a teacher cache, and its attention.
        """
        taught = verifier.hidden * self.verifier_width if self.top_k is None else 4 + 12 * self.top_k
        return taught + (4 * visual_tokens if self.guidance_layers else 0)

    def saved(self, verifier: Shape) -> int:
        """Bytes that quantization takes off the verifier's weights."""
        if self.verifier_bits is None:
            return 0
        return round(verifier.linear * (self.verifier_width - self.verifier_bits / 8))


@dataclass(frozen=True)
class Memory:
    """Bytes of the parts in `PARTS` for each model, and the peak of each phase of a step."""

    verifier: dict[str, int]
    drafter: dict[str, int]
    phases: dict[str, int]

    @property
    def peak(self) -> int:
        """The largest phase."""
        return max(self.phases.values())


def training_memory(verifier: Shape, drafter: Shape, work: Workload, stage: Stage) -> Memory:
    """Memory of a training step on one device that holds both models whole.

    Weights, gradients and optimizer values are always there. On top of them come, in turn: the drafter's pass
    over the text and the verifier's working set, which a teacher cache spares; in alignment the rollouts, for
    which both models copy their caches and the verifier judges a chunk of every block; all of the drafter's
    activations and the logits; and the optimizer's copy of the gradients. Where
    layers are recomputed, one of the largest pass comes after the logits, which are gone by then. Weights
    include 2-byte copies of the drafter's learning matrices if mixed, and the reference, unless adapters are
    switched off for it.
    """
    trainable, width = stage.trainable(drafter), stage.drafter_width
    runs, guided = work.drafter_passes(), stage.guidance_layers > 0
    frozen = stage.adapters is not None
    copies = 2 * (drafter.linear + drafter.head) if stage.mixed and width == 4 and not frozen else 0
    whole = (drafter.parameters + drafter.router + (stage.adapters or 0)) * width
    reference = whole if stage.align and stage.reference and stage.adapters is None else 0
    lessons = work.batch * work.answer_tokens * stage.lesson_bytes(verifier, work.visual_tokens)
    passes = work.verifier_passes(stage.align)
    reading = memory.reading_bytes(verifier, passes[0], guided, stage.verifier_width)
    reading = reading if stage.top_k is None else 0
    caches = [
        memory.cache_bytes(verifier, run.rows, run.keys, stage.verifier_width) if stage.align else 0
        for run in (passes[0], passes[-1])
    ]
    if stage.align:
        kind = (stage.mixed, stage.reference, stage.compared)
        logits = memory.align_logit_bytes(verifier.vocab, work.judged, work.scored, *kind)
    elif stage.top_k is None:
        logits = memory.kd_logit_bytes(verifier.vocab, work.scored, stage.mixed)
    else:
        logits = 0, memory.cached_logit_bytes(verifier.vocab, work.scored)
    tower = memory.tower_bytes(drafter, work.visual_tokens, work.batch, stage.mixed)
    kinds = (stage.mixed, stage.fused)
    kept = memory.activation_bytes(drafter, runs, *kinds, stage.recompute, frozen)
    again = max(memory.layer_bytes(drafter, run, *kinds, frozen) for run in runs) if stage.recompute else 0
    kept += tower if stage.train_vision else 0
    big = {
        "weights": verifier.parameters * stage.verifier_width - stage.saved(verifier),
        "gradients": 0,
        "optimizer": 0,
        "KV": sum(caches),
        "activations": reading + lessons,
        "logits": logits[0],
    }
    small = {
        "weights": whole + reference + copies,
        "gradients": trainable * width,
        "optimizer": round(trainable * stage.states * width),
        "KV": memory.kept_cache_bytes(drafter, runs, stage.mixed),
        "activations": kept + again,
        "logits": logits[1],
    }
    fixed = sum(part[name] for part in (big, small) for name in ("weights", "gradients", "optimizer"))
    text = memory.activation_bytes(drafter, runs[:1], *kinds, stage.recompute, frozen)
    cached = memory.kept_cache_bytes(drafter, runs[:1], stage.mixed)
    text += cached + lessons + (tower if stage.train_vision else 0)
    phases = {"verifier reads": fixed + text + reading + caches[0]} if stage.top_k is None else {}
    scored = sum(logits)
    if stage.align:
        judging = max(memory.reading_bytes(verifier, run, False, stage.verifier_width) for run in passes[1:])
        phases["rollouts"] = fixed + text + small["KV"] - cached + sum(caches) + max(judging, logits[0])
        scored = logits[1]
    phases["loss"] = fixed + kept + small["KV"] + caches[0] + lessons + max(scored, again)
    phases["optimizer step"] = fixed + (trainable * width if stage.foreach else 0)
    return Memory(big, small, phases)


def decoding_memory(verifier: Shape, drafter: Shape, work: Workload, stage: Stage) -> Memory:
    """Memory of decoding: caches of prompt, answer, block and root, and the working set of the prompt's pass.

    The drafter's cache also has room for all visual tokens, which its layout may show it.
    """
    room, width = work.answer_tokens + work.block_size + 1, stage.verifier_width
    parts = []
    for shape, prompt, extra, scored in (
        (verifier, work.prompt_tokens + work.visual_tokens, 0, work.block_size + 1),
        (drafter, work.prompt_tokens + 1, work.visual_tokens + 2, 1),
    ):
        parts.append(
            {
                "weights": (shape.parameters + (drafter.router if shape is drafter else 0)) * width,
                "gradients": 0,
                "optimizer": 0,
                "KV": memory.cache_bytes(shape, work.batch, prompt + room + extra, width),
                "activations": memory.reading_bytes(shape, Pass(work.batch, prompt, prompt), False, width),
                "logits": work.batch * scored * shape.vocab * width,
            }
        )
    parts[0]["weights"] -= stage.saved(verifier)
    fixed = sum(part["weights"] + part["KV"] for part in parts)
    phases = {
        "prefill": fixed + max(part["activations"] for part in parts),
        "verify": fixed + parts[0]["logits"] + parts[1]["logits"],
    }
    return Memory(parts[0], parts[1], phases)


def largest(peak: Callable[[int], int], budget: float) -> int:
    """The largest size from 1 to 65,536 whose peak fits the budget, 0 if none does; bisection."""
    low, high = 0, LARGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if peak(middle) <= budget else (low, middle - 1)
    return low


def fitting(verifier: Shape, drafter: Shape, work: Workload, stage: Stage, budget: int) -> dict[str, int]:
    """The largest batch, group (alignment) and decoding batch that fit a card of `budget` bytes.

    Args:
        verifier: Sizes of the verifier.
        drafter: Sizes of the drafter.
        work: The configured sizes; each answer changes one of them.
        stage: How the drafter is trained.
        budget: Memory of the card, of which 92 % count as usable.
    """

    def training(batch: int, group: int) -> int:
        return training_memory(verifier, drafter, replace(work, batch=batch, group=group), stage).peak

    def decoding(batch: int) -> int:
        return decoding_memory(verifier, drafter, replace(work, batch=batch), stage).peak

    found = {"training batch": largest(lambda size: training(size, work.group), USABLE * budget)}
    if stage.align:
        found["group"] = largest(lambda size: training(work.batch, size), USABLE * budget)
    return found | {"decoding batch": largest(decoding, USABLE * budget)}


@dataclass(frozen=True)
class Work:
    """Work of one pass: its operations, its memory traffic (0: not counted) and its tokens."""

    flops: int
    bytes: int
    tokens: int


def work_per_pass(verifier: Shape, drafter: Shape, work: Workload, stage: Stage) -> dict[str, Work]:
    """Operations and traffic of a decoding step, of verification, of a draft step, and of a training step.

    Decoding passes stand at the middle of the answer.
    """
    rows, count, width = work.batch, work.block_size + 1, stage.verifier_width
    half = work.answer_tokens // 2
    seen, text = work.prompt_tokens + work.visual_tokens + half, work.prompt_tokens + 1 + half
    shown = text + work.routed_tokens
    training = flops.training_flops(
        verifier,
        drafter,
        work,
        stage.align,
        stage.reference,
        stage.compared,
        stage.guidance_layers,
        stage.adapters is not None,
        stage.recompute,
        stage.train_vision,
        stage.top_k is not None,
    )

    def step(shape: Shape, queries: int, keys: int) -> Work:
        operations = flops.forward_flops(shape, rows, queries, keys)
        traffic = flops.forward_bytes(shape, rows, keys, width)
        traffic -= stage.saved(verifier) if shape is verifier else 0
        return Work(operations, traffic, rows * queries)

    return {
        "autoregressive step": step(verifier, 1, seen + 1),
        f"verify {count} tokens": step(verifier, count, seen + count),
        "draft step": step(drafter, 1, shown + 1),
        "training step": Work(training, 0, work.scored),
    }
