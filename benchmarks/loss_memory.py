"""Peak memory of the KD loss at the vocabulary of Qwen3-VL, with gradients: all logits against chunks.

Each measurement runs in a process of its own, which reports by how much its resident memory rose at most. It
needs Linux and glibc.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch
from torch import Tensor, nn

from tiger.evaluation.timing import limit_threads
from tiger.training.losses import chunked, kl

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
VOCAB_SIZE, HIDDEN_SIZE = 151_936, 64
QUICK = {"counts": (64, 128, 256), "max_elements": 2**21}
FULL = {"counts": (256, 512, 1024), "max_elements": 2**23}


class Heads:
    """Output layers of a verifier and a drafter, and hidden states to judge."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(0)
        self.verifier, self.drafter = (nn.Linear(HIDDEN_SIZE, VOCAB_SIZE, bias=False) for _ in range(2))
        self.verifier.requires_grad_(False)
        self.teacher = torch.randn(count, HIDDEN_SIZE)
        self.student = torch.randn(count, HIDDEN_SIZE, requires_grad=True)

    def loss(self, max_elements: int | None) -> Tensor:
        """Mean KL(p || q); None holds all logits at once."""

        def values(teacher: Tensor, student: Tensor) -> Tensor:
            return kl(self.verifier(teacher), self.drafter(student))

        if max_elements is None:
            return values(self.teacher, self.student).mean()
        inputs = self.teacher, self.student
        return chunked(values, *inputs, vocab_size=VOCAB_SIZE, max_elements=max_elements).mean()


def resident(field: str) -> int:
    """A field of this process's memory, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(count: int, max_elements: int | None, results: Connection) -> None:
    """Sends by how much memory rises at most in one loss and its gradient."""
    # Every large tensor has pages of its own, which are given back with it; the heap would keep some.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    heads = Heads(count)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    heads.loss(max_elements).backward()
    results.send(resident("VmHWM") - before)


def peak(count: int, max_elements: int | None) -> int:
    """The same, measured in another process."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(count, max_elements, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def equal(count: int, max_elements: int) -> bool:
    """Whether value and gradients of both ways agree."""
    found = []
    for elements in (None, max_elements):
        heads = Heads(count)
        loss = heads.loss(elements)
        found.append((loss, *torch.autograd.grad(loss, [heads.student, heads.drafter.weight])))
    return all(torch.allclose(a, b, atol=1e-6, rtol=1e-5) for a, b in zip(*found, strict=True))


def main() -> None:
    """Prints one line per number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few tokens, small chunks")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--num_threads", type=int, default=1)
    options = parser.parse_args()
    limit_threads(options.num_threads)
    size = QUICK if options.quick else FULL
    elements = size["max_elements"]
    print(f"vocabulary {VOCAB_SIZE:,}, at most {elements // VOCAB_SIZE} tokens per chunk, peak memory in MB")
    print(f"{'tokens':>7} {'logits of one model':>20} {'all logits':>11} {'chunks':>7} {'ratio':>6}")
    rows = [(count, peak(count, None), peak(count, elements)) for count in size["counts"]]
    for count, full, small in rows:
        logits = 4 * VOCAB_SIZE * count
        print(f"{count:7} {logits / 1e6:20.0f} {full / 1e6:11.0f} {small / 1e6:7.0f} {full / small:5.1f}x")
    same = equal(size["counts"][0], elements)
    growth = rows[-1][2] / rows[0][2]
    print(f"{rows[-1][0] // rows[0][0]} times the tokens take {growth:.2f} times the memory in chunks")
    if options.json:
        print(json.dumps({"ratio": rows[-1][1] / rows[-1][2], "equal": same, "growth": growth}))


if __name__ == "__main__":
    main()
