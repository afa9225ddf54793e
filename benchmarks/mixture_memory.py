"""Memory and speed of building a mixture of the paper's size, over stand-in data in the schemas of the hub.

The rows of the KD mixture's six sources are written to a temporary folder, as JSON with a folder of pictures
and as Parquet with pictures inside. Then the mixture is built and a tenth of it is decoded. Memory counts
what the data set library maps from files, too, which the system may drop at any time; the part that it may
not drop is printed beside it.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import of datasets

import numpy as np
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image

from data_modules.mixture import PAPER_SHARES
from data_modules.recipe import Recipe, SourceOptions, build_mixture
from data_modules.reserved import ReservedSet

LIMIT_GIB = 2.0
SIDE = 192  # pixels; about 12 kB as JPEG
TEXT = Value("string")
QUESTION = "What is written on the sign number {}?"


def picture(seed: int) -> bytes:
    """A noisy picture as JPEG."""
    noise = np.random.default_rng(seed).integers(0, 255, (SIDE // 2, SIDE // 2, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((SIDE, SIDE)).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def row(source: str, number: int, base: bytes) -> dict[str, Any]:
    """A row with a picture of its own: the bytes behind the end of a JPEG are ignored."""
    question = QUESTION.format(number)
    image = {"bytes": base + f"{source} {number}".encode(), "path": None}
    if source == "chartqa":
        return {"image": image, "query": question, "label": ["7"]}
    if source == "scienceqa":
        return {
            "image": image,
            "question": question,
            "choices": ["a", "b"],
            "answer": 0,
            "solution": "It is a.",
        }
    return {"image": image, "question": question, "answers": ["a"] * 10}


FEATURES = {
    "textvqa": {"question": TEXT, "answers": List(TEXT)},
    "docvqa": {"question": TEXT, "answers": List(TEXT)},
    "chartqa": {"query": TEXT, "label": List(TEXT)},
    "scienceqa": {"question": TEXT, "choices": List(TEXT), "answer": Value("int8"), "solution": TEXT},
}


def write(folder: Path, counts: dict[str, int]) -> None:
    """Writes the rows of all sources, and the recipe that reads them."""
    bases = [picture(seed) for seed in range(64)]
    options = {}
    for source, columns in FEATURES.items():

        def rows(source: str = source) -> Iterator[dict[str, Any]]:
            for number in range(counts[source]):
                yield row(source, number, bases[number % len(bases)])

        features = Features({"image": ImageFeature(), **columns})
        path = folder / f"{source}.parquet"
        Dataset.from_generator(rows, features=features, cache_dir=str(folder)).to_parquet(
            path, batch_size=500
        )
        options[source] = SourceOptions(counts[source], path=str(path))
    options["llava"] = write_llava(folder, counts["llava"], bases)
    options["tallyqa"] = write_tallyqa(folder, counts["tallyqa"])
    (folder / "reserved.txt").write_text("999999")  # a COCO number that no stand-in has
    recipe = Recipe(name="stand-in", reserved=(ReservedSet(str(folder / "reserved.txt")),), **options)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe)))


def write_llava(folder: Path, count: int, bases: list[bytes]) -> SourceOptions:
    """LLaVA's JSON, two records for each picture file."""
    root = folder / "coco" / "train2017"
    root.mkdir(parents=True)
    with (folder / "llava.json").open("w") as file:
        for number in range(count):
            name = f"{number // 2:012d}.jpg"
            if number % 2 == 0:
                (root / name).write_bytes(bases[number % len(bases)] + name.encode())
            said = [
                ("human", f"<image>\n{QUESTION.format(number)}"),
                ("gpt", "It says something else. " * 20),
            ]
            talk = [{"from": who, "value": text} for who, text in said]
            record = {"id": str(number), "image": f"coco/train2017/{name}", "conversations": talk}
            file.write(f"{',' if number else '['}\n{json.dumps(record)}")
        file.write("\n]\n")
    return SourceOptions(count, path=str(folder / "llava.json"), image_root=str(folder))


def write_tallyqa(folder: Path, count: int) -> SourceOptions:
    """TallyQA's JSON on LLaVA's pictures."""
    names = [f"train2014/COCO_train2014_{number:012d}.jpg" for number in range(count)]
    entries = [{"image": name, "question": "How many dogs are in it?", "answer": 2} for name in names]
    (folder / "tallyqa.json").write_text(json.dumps(entries))
    return SourceOptions(count, path=str(folder / "tallyqa.json"), image_root=str(folder / "coco"))


def anonymous_gib() -> float:
    """Memory of this process that is no copy of a file, GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) / 2**20


def measure(recipe: Recipe, num_decoded: int) -> dict[str, float]:
    """Builds the mixture and decodes the first records."""
    start = time.perf_counter()
    mixture = build_mixture(recipe)
    built = time.perf_counter()
    for index in range(min(num_decoded, len(mixture))):
        mixture[index].images[0].decode()
    decoded = time.perf_counter()
    print(mixture.report())
    return {
        "rows": len(mixture),
        "built_rows_per_s": len(mixture) / (built - start),
        "decoded_rows_per_s": min(num_decoded, len(mixture)) / (decoded - built),
        "peak_GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "anonymous_GiB": anonymous_gib(),
        "limit_GiB": LIMIT_GIB,
    }


def main() -> None:
    """Prints the report of the mixture and one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the rows")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--folder", type=Path, help="folder for the stand-in data; a temporary one by default"
    )
    options = parser.parse_args()
    counts = {name: count // (50 if options.quick else 1) for name, count in PAPER_SHARES["kd"].items()}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        # In a process of its own: writing takes memory that is none of the mixture's.
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(Path(folder), counts))
        writer.start()
        writer.join()
        if writer.exitcode:
            raise SystemExit("The stand-in data could not be written; see the error above.")
        recipe = Recipe.of(json.loads((Path(folder) / "recipe.json").read_text()))
        result = measure(recipe, sum(counts.values()) // 10)
    print(
        f"\n{result['rows']:,} rows: built {result['built_rows_per_s']:,.0f} rows/s, decoded "
        f"{result['decoded_rows_per_s']:,.0f} rows/s; peak {result['peak_GiB']:.2f} GiB with files, "
        f"{result['anonymous_GiB']:.2f} GiB without (limit {LIMIT_GIB:.0f})"
    )
    if options.json:
        print(json.dumps(result))
    if result["peak_GiB"] > LIMIT_GIB:
        raise SystemExit(f"More than {LIMIT_GIB} GiB were in use.")


if __name__ == "__main__":
    main()
