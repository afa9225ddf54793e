"""A tiny pair and sets of a few real questions, for tests of the benchmark."""

import sys
from pathlib import Path

from helpers import agreeing_drafter, picture, save_backbone, tiny_backbone
from hub_repository import write_repository

from data_modules.evaluation import SetOptions
from tiger.drafting.saving import save_drafter

ROOT = Path(__file__).resolve().parents[2]


def write_world(folder):
    """A tiny pair, and POPE and ScienceQA with a few real questions each."""
    verifier = tiny_backbone(layers=1)
    save_backbone(verifier, folder / "verifier")
    save_drafter(agreeing_drafter(verifier, 0.5), folder / "tiger")
    sys.path.insert(0, str(ROOT / "tests" / "data_modules" / "evaluation"))
    from fixtures import POPE, SCIENCEQA, full

    sys.path.pop(0)
    pope = [
        full(POPE, question=f"Is there a {thing}?", answer=answer, category="random", image=picture(number))
        for number, (thing, answer) in enumerate(
            (("star", "yes"), ("dog", "no"), ("cat", "no"), ("sign", "yes"))
        )
    ]
    science = full(SCIENCEQA, question="Which?", choices=["a", "b"], answer=1, hint="", subject="physics")
    write_repository(folder / "pope", {"test": pope}, POPE)
    rows = [science | {"image": picture(9)}, science | {"image": None}]
    write_repository(folder / "science", {"test": rows}, SCIENCEQA, "ScienceQA-IMG")
    return folder


def settings(world, output, **changes):
    return {
        "verifier": str(world / "verifier"),
        "decoders": {"tiger": str(world / "tiger")},
        "dataset": ["pope", "scienceqa", "pope@speed"],
        "num_prompts": None,
        "set_options": {
            "pope": SetOptions(path=world / "pope"),
            "pope@speed": SetOptions(path=world / "pope"),
            "scienceqa": SetOptions(path=world / "science"),
        },
        "temperatures": [0.0],
        "batch_sizes": [1, 2],
        "block_size": 3,
        "max_new_tokens": 8,
        "acceptance_batch_size": 3,
        "speed_prompts": 1,
        "speed_repeats": 1,
        "full_token_decoder": "tiger",
        "output": output,
        "num_threads": None,
        "device": "cpu",
    } | changes
