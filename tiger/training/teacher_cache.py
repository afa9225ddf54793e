"""The verifier's lessons on disk.

For KD they are the likeliest tokens, the mass of all others, and where the verifier looks; for draft heads
its hidden states, see `head_lessons`. A cache is a folder with `settings.json`, which says what it depends
on, and shards of the same number of examples in the order of the data. A shard is written under another name
and renamed, so a killed run leaves whole shards, and the next run makes those that are missing or damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from data_modules.files import damaged, read_json, write_whole
from tiger.backbones.grids import Grid
from tiger.training.teacher import Lesson

SETTINGS = "settings.json"
TOP_K = 64  # tokens kept at each answer position, unless another number is asked for
LEAST_TAIL = 1e-9  # the logarithm of nothing is no number


@dataclass(frozen=True)
class CacheSettings:
    """What a cache depends on.

    Attributes:
        verifier: Fingerprint of the verifier's weights.
        verifier_dtype: Type of its weights.
        data: Name of the training data, the verifier's answers included.
        temperature: Divides the logits; None for draft heads.
        top_k: Tokens kept at each position; None for draft heads.
        guidance: Layers and exponent of the attention that is kept; None where none is kept.
        num_examples: Examples of the data.
        shard_size: Examples of a shard.
        layers: Layers whose inputs a draft head reads, none for the final hidden states; None for KD.
    """

    verifier: str
    verifier_dtype: str
    data: str
    temperature: float | None
    top_k: int | None
    guidance: tuple[int, float] | None
    num_examples: int
    shard_size: int
    layers: tuple[int, ...] | None = None

    @property
    def num_shards(self) -> int:
        """Files of a whole cache."""
        return -(-self.num_examples // self.shard_size)


@dataclass
class CachedLesson:
    """One answer as the verifier read it, without most of its vocabulary.

    Attributes:
        log_p: Log-probabilities [R, k + 1] of the likeliest tokens and, last, of all others together.
        ids: Those tokens [R, k].
        attention: As in `Lesson` [R, N].
        grids: As in `Lesson`.
        judgement: As in `Lesson`.
    """

    log_p: Tensor
    ids: Tensor
    attention: Tensor
    grids: tuple[Grid, ...]
    judgement = ("log_p", "ids")


def condense(lesson: Lesson, logits: Tensor, settings: CacheSettings) -> dict[str, Tensor]:
    """What is kept of a lesson.

    Args:
        lesson: The lesson.
        logits: Verifier logits [R, V] of its hidden states.
        settings: How much is kept.
    """
    assert settings.top_k is not None and settings.temperature is not None  # noqa: PT018
    log_p = (logits.float() / settings.temperature).log_softmax(-1)
    top = log_p.topk(settings.top_k, dim=-1)
    tail = log_p.double().exp().scatter(-1, top.indices, 0.0).sum(-1)
    unseen = log_p.new_zeros(len(log_p), 0)
    attention = unseen if settings.guidance is None or lesson.attention is None else lesson.attention
    return {
        "log_p": top.values.clamp_min(-6e4).half(),  # within its range
        "ids": top.indices.int(),
        "tail": tail.float(),
        "attention": attention.half(),
        "grids": torch.tensor(lesson.grids, dtype=torch.int32).view(-1, len(Grid._fields)),
    }


def restore(kept: dict[str, Tensor]) -> CachedLesson:
    """The lesson that `condense` kept."""
    tail = kept["tail"].clamp_min(LEAST_TAIL).log()[:, None]
    log_p = torch.cat([kept["log_p"].float(), tail], dim=1)
    grids = tuple(Grid(f, r, c, bool(n), bool(a)) for f, r, c, n, a in kept["grids"].tolist())
    return CachedLesson(log_p, kept["ids"].long(), kept["attention"].float(), grids)


def coarse(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities [..., k + 1] of some tokens and, last, of all others together.

    Args:
        logits: Logits [..., V].
        ids: Token ids [..., k].
    """
    log_q = logits.float().log_softmax(-1)
    rest = log_q.scatter(-1, ids, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat([log_q.gather(-1, ids), rest], dim=-1)


class TeacherCache:
    """Reads what is kept of lessons, by the name of their prompt.

    Args:
        folder: A whole cache.

    Raises:
        FileNotFoundError: If there is no cache, or it is not whole.
        ValueError: If its settings are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / SETTINGS).is_file():
            raise FileNotFoundError(
                f"There is no teacher cache in {folder}. Make it with `python -m tiger data cache-teacher` "
                "and the options of this run, or set teacher_cache null."
            )
        self.settings = read_settings(folder)
        if missing := missing_shards(folder, self.settings):
            raise FileNotFoundError(
                f"The teacher cache {folder} lacks {len(missing)} of {self.settings.num_shards} shards, the "
                f"first is {shard_path(folder, missing[0]).name}, which is not there or damaged. Run `python "
                "-m tiger data cache-teacher` again with the same options; it makes the missing ones."
            )
        self.places: dict[str, Path] = {}
        self.parts: set[str] = set()
        for index in range(self.settings.num_shards):
            with safe_open(path := shard_path(folder, index), "pt") as shard:
                for entry in shard.keys():  # noqa: SIM118
                    name, _, part = entry.rpartition("/")
                    self.places[name] = path
                    self.parts.add(part)

    def __call__(self, name: str, device: torch.device) -> dict[str, Tensor]:
        """What is kept of the lesson of a prompt.

        Raises:
            ValueError: If the prompt is not in the cache.
        """
        if name not in self.places:
            raise ValueError(f"The teacher cache {self.folder} has no lesson for prompt {name!r}.")
        with safe_open(self.places[name], "pt") as shard:
            return {part: shard.get_tensor(f"{name}/{part}").to(device) for part in self.parts}


def open_cache(folder: Path, needed: Callable[[CacheSettings], CacheSettings]) -> TeacherCache:
    """Opens a cache and checks that it is what a run needs.

    Args:
        folder: A whole cache.
        needed: The settings that the run needs of a cache with the given ones, of which it may take sizes.

    Raises:
        FileNotFoundError: If there is none, or it is not whole.
        ValueError: Naming the first setting that differs.
    """
    cache = TeacherCache(folder)
    check_cache(cache.settings, needed(cache.settings), folder)
    return cache


def check_cache(found: CacheSettings, wanted: CacheSettings, folder: Path) -> None:
    """Checks that a cache is what a run needs; attention may be kept although it is not needed.

    Raises:
        ValueError: Naming the first setting that differs.
    """
    reasons = {
        "verifier": "its lessons come from another verifier",
        "verifier_dtype": "its verifier had weights of another type",
        "data": "its lessons are on other training data or answers",
        "layers": "it was made for another task, or for a draft head that reads other layers",
        "temperature": "its probabilities are at another temperature",
        "guidance": "its attention is of other layers or exponent, or was not kept (guidance_weight was 0)",
        "num_examples": "its data have another number of examples",
        "top_k": "it keeps another number of tokens",
        "shard_size": "its shards have another size",
    }
    for name, reason in reasons.items():
        old, new = getattr(found, name), getattr(wanted, name)
        if old != new and not (name == "guidance" and new is None):
            raise ValueError(
                f"The teacher cache {folder} does not fit: {reason} ({name} {_short(old)}, needed "
                f"{_short(new)}). Make one in another folder with `python -m tiger data cache-teacher`."
            )


def read_settings(folder: Path) -> CacheSettings:
    """The settings of a cache.

    Raises:
        ValueError: If their file is damaged.
    """
    advice = f"Delete {folder}, and make the cache again with `python -m tiger data cache-teacher`."
    content = read_json(folder / SETTINGS, advice)
    tuples = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
    try:
        return CacheSettings(**content | tuples)
    except TypeError as error:
        raise damaged(folder / SETTINGS, repr(error), advice) from error


def write_settings(folder: Path, settings: CacheSettings) -> None:
    """Starts a cache, or continues one with the same settings.

    Raises:
        ValueError: If the folder holds a cache with others.
    """
    if (folder / SETTINGS).is_file():
        check_cache(read_settings(folder), settings, folder)
    else:
        write_whole(folder / SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")


def serialize(names: Sequence[str], lessons: Sequence[dict[str, Tensor]]) -> bytes:
    """Content of a shard: what is kept of some lessons under the names of their prompts."""
    return save(
        {
            f"{name}/{part}": value.cpu().contiguous()
            for name, lesson in zip(names, lessons, strict=True)
            for part, value in lesson.items()
        }
    )


def write_shard(folder: Path, index: int, content: bytes) -> None:
    """Writes one shard, whole or not at all."""
    path = shard_path(folder, index)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def missing_shards(folder: Path, settings: CacheSettings) -> list[int]:
    """Numbers of the shards that are not there, or whose header and length say that they are not whole."""
    return [i for i in range(settings.num_shards) if not _is_whole(shard_path(folder, i))]


def _is_whole(path: Path) -> bool:
    try:
        with safe_open(path, "pt"):
            return True
    except (FileNotFoundError, SafetensorError):
        return False


def shard_path(folder: Path, index: int) -> Path:
    """Where a shard lies."""
    return folder / f"shard-{index:05d}.safetensors"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"
