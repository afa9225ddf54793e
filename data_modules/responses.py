"""The verifier's own answers to the prompts of a mixture, generated once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock
from rich.progress import track

from data_modules.examples import PromptFormat
from data_modules.files import damaged, write_whole
from data_modules.mixture import Mixture
from data_modules.sources import SkipRow
from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.folders import commit_of, model_files, resolve
from tiger.backbones.loading import Quantization
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder

PARTIAL, FINISHED = "partial.jsonl", "responses.jsonl"


@dataclass(frozen=True)
class ResponseSettings:
    """What the answers depend on, besides verifier and prompts.

    Attributes:
        max_new_tokens: Longest answer, tokens.
        temperature: 0 for greedy answers.
        seed: Seed of sampled answers.
        dtype: Type of the verifier's weights.
        quantization: Bits of the verifier's weights, see `load_backbone`.
    """

    max_new_tokens: int = 96
    temperature: float = 0.0
    seed: int = 0
    dtype: str = "float32"
    quantization: Quantization | None = None


class Responses:
    """Answers by the name of their prompt.

    Attributes:
        truncated: Number of answers that were cut at the limit; they are kept, without an end token.
    """

    def __init__(self, tokens: Mapping[str, array[int]], truncated: int) -> None:
        self.tokens, self.truncated = tokens, truncated

    def __len__(self) -> int:
        return len(self.tokens)

    def __call__(self, key: str) -> list[int]:
        """Token ids of the answer to a prompt."""
        return self.tokens[key].tolist()


def load_or_generate(
    mixture: Mixture,
    form: PromptFormat,
    verifier: str,
    settings: ResponseSettings,
    cache_dir: Path,
    load: Callable[[], Backbone],
    batch_size: int = 32,
) -> Responses:
    """Reads the cached answers, generating those that are missing.

    A killed run leaves whole lines behind, which the next run keeps; so it does with a finished file that was
    cut in a line. Processes that want the same answers wait for the first of them.

    Args:
        mixture: The prompts.
        form: How a record becomes a prompt.
        verifier: Hub id, folder or shipped name of the verifier.
        settings: How answers are generated.
        cache_dir: Folder of all caches.
        load: Loads the verifier; only called if an answer is missing.
        batch_size: Prompts per batch.

    Raises:
        ValueError: If a finished file lacks answers, or a line of a file is damaged.
    """
    parts: dict[str, object] = {
        "verifier": fingerprint(verifier),
        "template": form.template,
        # Without empty entries, so that answers of before an option was added are still found.
        "settings": {name: value for name, value in asdict(settings).items() if value is not None},
        "mixture": mixture.manifest,
    }
    if form.max_pixels is not None:
        parts["max_pixels"] = form.max_pixels
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    folder = cache_dir / "responses" / key
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if _is_cut(folder / FINISHED):
            os.replace(folder / FINISHED, folder / PARTIAL)
        if not (folder / FINISHED).exists():
            write_whole(folder / "settings.json", json.dumps(parts | {"source": verifier}, indent=2) + "\n")
            _generate(mixture, form, settings, folder / PARTIAL, load, batch_size)
            os.replace(folder / PARTIAL, folder / FINISHED)
    responses = _read(folder / FINISHED)
    missing = {mixture.key(i) for i in range(len(mixture))} - responses.tokens.keys()
    if missing:
        raise ValueError(
            f"{folder / FINISHED} lacks {len(missing)} answers, such as {min(missing)}. Delete {folder}, "
            "and they are generated again."
        )
    return responses


def _generate(
    mixture: Mixture,
    form: PromptFormat,
    settings: ResponseSettings,
    path: Path,
    load: Callable[[], Backbone],
    batch_size: int,
) -> None:
    """Appends the missing answers to a file, one batch at a time."""
    done = _keep_whole_lines(path)
    batches = [
        batch for batch in _batches(mixture, batch_size) if any(mixture.key(i) not in done for i in batch)
    ]
    if not batches:
        path.touch()
        return
    sampling = Sampling(temperature=settings.temperature)
    decoder = AutoregressiveDecoder(load(), settings.max_new_tokens, sampling, settings.seed)
    with path.open("a", encoding="utf-8") as file:
        # Whole batches are answered again: an answer must not depend on where an earlier run was killed.
        for batch in track(batches, description="Verifier answers"):
            lines = [line for line in _answer(mixture, form, decoder, batch) if line["id"] not in done]
            file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())


def _answer(
    mixture: Mixture, form: PromptFormat, decoder: AutoregressiveDecoder, batch: list[int]
) -> list[dict[str, object]]:
    """The answers to some prompts; a damaged picture gets an empty one, as `Examples` does without it."""
    prompts: list[Prompt] = []
    lines: list[dict[str, object]] = []
    for index in batch:
        try:
            prompts.append(form.prompt(mixture[index]))
        except SkipRow as skipped:
            lines.append({"id": mixture.key(index), "tokens": [], "finish": skipped.reason})
    answers = decoder.generate(prompts) if prompts else []
    lines += [{"id": a.id, "tokens": a.tokens, "finish": a.finish} for a in answers]
    return lines


def _batches(mixture: Mixture, batch_size: int) -> Iterator[list[int]]:
    """Indices in batches of prompts of similar length."""
    lengths = mixture.lengths
    order = sorted(range(len(mixture)), key=lambda i: (lengths[i], i))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _is_cut(path: Path) -> bool:
    """Whether a file ends inside a line, as an interrupted copy does; all lines before are whole."""
    return path.exists() and not path.read_bytes().endswith(b"\n")


def _keep_whole_lines(path: Path) -> set[str]:
    """Cuts a file behind its last whole line; returns the names of the answers in it."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("rb+") as file:
            file.truncate(whole)
    return set(_read(path).tokens)


def _read(path: Path) -> Responses:
    tokens, truncated = {}, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                tokens[entry["id"]] = array("i", entry["tokens"])
                truncated += entry["finish"] == "length"
            except (ValueError, KeyError, TypeError) as error:
                advice = f"Delete {path.parent}, and all its answers are generated again."
                raise damaged(path, f"line {number} is no answer ({error!r})", advice) from error
    return Responses(tokens, truncated)


def fingerprint(name_or_path: str) -> str:
    """Commit of a hub model; of a folder a hash over weights, configuration, tokenizer and processor.

    Args:
        name_or_path: Folder, shipped name or hub id (which is fetched if it is not in the local hub cache).
    """
    path = resolve(name_or_path)
    if (commit := commit_of(path)) is not None:
        return commit
    digest = hashlib.sha256()
    for file in model_files(path):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()[:16]
