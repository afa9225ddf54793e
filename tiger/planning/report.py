"""Prints a plan as tables."""

from __future__ import annotations

import re

from tiger.planning.plan import PARTS, Memory, Work

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """Bytes of "80GiB", "80 GB" or "85899345920".

    Raises:
        ValueError: If the text is no size.
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS or match[1].count(".") > 1 or float(match[1]) <= 0:
        raise ValueError(f"gpu_memory is {text!r}; give a size above 0 such as 80GiB, 24GB or 512MiB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def memory_table(title: str, found: Memory) -> str:
    """Parts by model, then the peaks of the phases; the largest one is marked."""
    unit = 2**30 if found.peak >= 2**28 else 2**20
    name = "GiB" if unit == 2**30 else "MiB"
    lines = [f"{title:32} {'verifier':>12} {'drafter':>12}   {name}"]
    for part in PARTS:
        sizes = (found.verifier[part] / unit, found.drafter[part] / unit)
        if any(sizes):
            lines.append(f"  {part:30} {sizes[0]:12.2f} {sizes[1]:12.2f}")
    for phase, peak in found.phases.items():
        mark = "  <- peak" if peak == found.peak else ""
        lines.append(f"  {'both, ' + phase:30} {peak / unit:25.2f}{mark}")
    return "\n".join(lines)


def fitting_line(card: str, sizes: dict[str, int]) -> str:
    """What fits a card, and what to turn if one example does not."""
    line = f"largest on {card}: " + ", ".join(f"{name} {size or 'none'}" for name, size in sizes.items())
    if not all(sizes.values()):
        line += "\n  Learn adapters (lora) or recompute layers (gradient_checkpointing), take a smaller"
        line += " drafter, or a larger card."
    return line


def work_table(passes: dict[str, Work]) -> str:
    """Operations and traffic per pass and per token."""
    lines = [f"{'work':32} {'GFLOP':>12} {'GFLOP/token':>12} {'GB':>9} {'GB/token':>9} {'FLOP/byte':>10}"]
    for name, row in passes.items():
        line = f"  {name:30} {row.flops / 1e9:12.3f} {row.flops / row.tokens / 1e9:12.3f}"
        if row.bytes:
            traffic = row.bytes / 1e9
            line += f" {traffic:9.3f} {traffic / row.tokens:9.3f} {row.flops / row.bytes:10.1f}"
        lines.append(line)
    return "\n".join(lines)
