"""Starts a program once per rank, as torchrun would, and waits for no rank that a dead one left behind."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def spawn(words, world=2, timeout=300, paths=()):
    """Runs `python *words` in each rank; returns what each printed.

    Fails as soon as one rank does: the others may wait for it in a collective for half an hour.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "tests", *paths])), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    shared |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "GROUP_RANK": "0"}
    # Lightning would seed every rank alike with what an earlier test left in the environment.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PL_")}
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder) / f"{rank}.txt" for rank in range(world)]
        running = [
            subprocess.Popen(
                [sys.executable, *words],
                env=inherited | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=printed[rank].open("w"),
                stderr=subprocess.STDOUT,
            )
            for rank in range(world)
        ]
        try:
            codes = wait(running, timeout)
        finally:
            for process in running:
                process.kill()
                process.wait()
        texts = [path.read_text(errors="replace") for path in printed]
    assert codes == [0] * world, f"exit codes {codes}\n\n" + "\n\n".join(text[-3000:] for text in texts)
    return texts


def wait(running, timeout):
    """The exit codes once all ranks ended, one failed, or the time is over (None: still running)."""
    end = time.monotonic() + timeout
    while True:
        codes = [process.poll() for process in running]
        if None not in codes or any(codes) or time.monotonic() > end:
            return codes
        time.sleep(0.1)
