"""Measures how many synthetic samples and turns one core renders in a second."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

from data_modules.synthetic.world import KINDS, generate


def measure(kind: str | None, count: int) -> tuple[float, float]:
    """Renders samples of one kind.

    Args:
        kind: One of `KINDS`, or None for the usual mixture.
        count: Number of samples.

    Returns:
        Samples and turns per second.
    """
    generate(count, kind)  # fills the caches of masks and glyphs
    start = time.perf_counter()
    turns = sum(len(generate(seed, kind).turns) for seed in range(count))
    seconds = time.perf_counter() - start
    return count / seconds, turns / seconds


def main() -> None:
    """Prints one line for each kind and one for the mixture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples")
    count = 200 if parser.parse_args().quick else 3000
    print(f"{'kind':10} {'samples/s':>10} {'rows/s':>10}")
    for kind in (*KINDS, None):
        samples, rows = measure(kind, count)
        print(f"{kind or 'mixture':10} {samples:10.0f} {rows:10.0f}")


if __name__ == "__main__":
    main()
