"""Opens public data sets: from the hub, by the first id that works, or from a local copy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset, load_dataset, load_from_disk
from datasets import Image as ImageFeature
from datasets import List as ListFeature
from datasets import config as hub_config
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

Opened: TypeAlias = "Dataset | IterableDataset"

TABLES = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}
SCRIPT = "Dataset scripts are no longer supported"


def open_rows(
    candidates: Sequence[str],
    path: Path | None,
    split: str,
    config: str | None = None,
    streaming: bool = False,
) -> Opened:
    """Opens one split of a data set; its images stay encoded, as `{"bytes": ..., "path": ...}`.

    Args:
        candidates: Hub ids of the same data, tried in this order; data sets move.
        path: A local copy in place of the hub: a folder with the files of the hub repository, a folder of
            `Dataset.save_to_disk`, or one Parquet, Arrow, JSON or JSON Lines file, which is the split itself.
        split: Name of the split.
        config: Name of the configuration, where the data set has several.
        streaming: Read rows one after the other while they are fetched.

    Raises:
        FileNotFoundError: If the local path does not exist, or no candidate can be reached.
        ValueError: If the data set is a script, or has no such configuration or split.
    """
    if path is not None:
        return _encoded(_open_path(path, split, config, streaming))
    failures: list[str] = []
    for name in candidates:
        try:
            return _encoded(_load(name, split, config, streaming))
        except (ConnectionError, DatasetNotFoundError) as error:
            failures.append(f"{name} ({str(error).splitlines()[0]})")
    raise _unreachable(failures)


def hub_file(candidates: Sequence[str], name: str) -> Path:
    """Fetches one file of a data set repository, by the first id that works.

    Args:
        candidates: Hub ids of the same data, tried in this order.
        name: Name of the file in the repository.

    Raises:
        FileNotFoundError: If no candidate can be reached.
    """
    failures: list[str] = []
    for repo in candidates:
        try:
            return Path(hf_hub_download(repo, name, repo_type="dataset"))
        except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as error:
            failures.append(f"{repo} ({str(error).splitlines()[0]})")
    raise _unreachable(failures)


def _unreachable(failures: Sequence[str]) -> FileNotFoundError:
    return FileNotFoundError(
        f"None of the hub ids can be reached: {'; '.join(failures) or 'there are none'}. Check the network "
        "and HF_HUB_OFFLINE, give another id, or give the path of a local copy."
    )


def require_columns(found: Sequence[str], expected: Sequence[str], name: str) -> None:
    """Checks that a data set has the columns that are read.

    Args:
        found: Columns of the data set.
        expected: Columns that are read.
        name: Name of the data set, for the message.

    Raises:
        ValueError: If one is missing; naming those expected and those found.
    """
    if missing := [column for column in expected if column not in found]:
        raise ValueError(
            f"{name} lacks the columns {', '.join(missing)}: expected {', '.join(expected)}, found "
            f"{', '.join(found)}. Give a data set of the same schema."
        )


def _open_path(path: Path, split: str, config: str | None, streaming: bool) -> Opened:
    """Opens a local copy."""
    if not path.exists():
        raise FileNotFoundError(
            f"There is no data set at {str(path)!r}; give a folder with the files of the hub repository, a "
            "folder of `save_to_disk`, or one Parquet, Arrow, JSON or JSON Lines file."
        )
    if path.is_file():
        if path.suffix not in TABLES:
            raise ValueError(f"{path.name!r} is no {', '.join(TABLES)} file; give one, or a folder.")
        return load_dataset(TABLES[path.suffix], data_files=str(path), split="train", streaming=streaming)
    saved = path if (path / "state.json").exists() else path / split
    if not (saved / "state.json").exists():
        return _load(str(path), split, config, streaming)
    rows = load_from_disk(str(saved))
    return rows.to_iterable_dataset() if streaming else rows


def _load(name: str, split: str, config: str | None, streaming: bool) -> Opened:
    """`load_dataset` with errors that say what to do."""
    try:
        return load_dataset(name, config, split=split, streaming=streaming, cache_dir=_cache_of(Path(name)))
    except RuntimeError as error:
        if SCRIPT not in str(error):
            raise
        raise ValueError(
            f"{name} is a data set made by a script, which `datasets` no longer runs. Give the id "
            "of a Parquet copy, or the path of a local one."
        ) from error
    except ValueError as error:
        raise ValueError(f"{name}, configuration {config!r}, split {split!r}: {error}") from error


def _cache_of(folder: Path) -> str | None:
    """A cache of its own for each state of a local folder, None for a hub id.

    `datasets` names the cache of a folder by its last name and configuration only, so that two folders
    `test`, or one whose files have changed, would be taken for one another.
    """
    if not folder.is_dir():
        return None
    files = [(path, path.stat()) for path in sorted(folder.resolve().rglob("*")) if path.is_file()]
    state = "\n".join(f"{path} {found.st_size} {found.st_mtime_ns}" for path, found in files)
    return str(Path(hub_config.HF_DATASETS_CACHE) / "local" / hashlib.sha256(state.encode()).hexdigest()[:16])


def _encoded(rows: Opened) -> Opened:
    """The same rows with images left encoded; nothing is copied."""
    if isinstance(rows, IterableDataset):
        return rows.decode(False) if rows.features else rows  # JSON Lines: columns unknown, no images
    info = rows.info.copy()
    info.features = type(info.features)(_undecoded(dict(info.features)))
    return Dataset(rows.data, info, rows.split, fingerprint=rows._fingerprint)


def _undecoded(feature: Any) -> Any:
    """A feature whose images, at any depth, are not decoded."""
    if isinstance(feature, ImageFeature):
        return ImageFeature(mode=feature.mode, decode=False)
    if isinstance(feature, dict):
        return {name: _undecoded(part) for name, part in feature.items()}
    if isinstance(feature, ListFeature):
        return ListFeature(_undecoded(feature.feature), length=feature.length)
    return [_undecoded(part) for part in feature] if isinstance(feature, list) else feature
