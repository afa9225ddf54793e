"""What a report is made from: folders of benchmarks, studies and training runs, told apart by content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiger.ablation.jobs import CHANGES

METRICS = "metrics.json"
EVENTS = "events.out.tfevents.*"
DEPTH = 2  # folders below the given one that are looked into
ENTRY_KEYS = {"decoder", "dataset", "temperature", "batch_size", "num_prompts", "device", "num_threads"}
ENTRY_KEYS |= {"acclen", "acclen_low", "acclen_high", "p_accept_ge", "rounds_per_token", "exact", "is_lossy"}
ENTRY_KEYS |= {
    "metric",
    "score",
    "score_low",
    "score_high",
    "speedup",
    "latency_s",
    "phase_ms",
    "speed_dataset",
}
STUDY_KEYS = {
    "study",
    "title",
    "question",
    "command",
    "pair",
    "seeds",
    "provenance",
    "columns",
    "plot",
    "cells",
}
STUDY_KEYS |= {"paper", "contrasts"}


@dataclass(frozen=True)
class Benchmark:
    """What the `benchmark` verb left.

    Attributes:
        folder: Its folder.
        cells: Entries of `metrics.json`.
        differences: Entries of `differences.json`.
        settings: Content of `settings.json`; empty for folders of a version that wrote none.
    """

    folder: Path
    cells: list[dict[str, Any]]
    differences: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What a study left.

    Attributes:
        folder: Its folder.
        content: Its `metrics.json`, see docs/report.md.
    """

    folder: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A training run.

    Attributes:
        folder: Its folder.
        scalars: Steps and values of each logged figure.
        provenance: Content of `provenance.json`, empty without one.
    """

    folder: Path
    scalars: dict[str, list[tuple[int, float]]]
    provenance: dict[str, Any] = field(default_factory=dict)


Source = Benchmark | Study | Run


def find_sources(folders: Sequence[Path]) -> dict[str, Source]:
    """Everything readable in and below some folders, in their order, by the names of their folders.

    Args:
        folders: Folders of results. One that holds several is searched, two levels deep; what lies below a
            study, and the jobs of studies, belong to these.

    Raises:
        FileNotFoundError: If a folder is missing, or nothing readable is in it.
        ValueError: If a `metrics.json` is neither a benchmark's nor a study's.
    """
    found: dict[Path, Source] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"There is no folder {folder}; give folders of results.")
        own = _search(folder, DEPTH)
        if not own:
            raise FileNotFoundError(
                f"Nothing to report in {folder}: looked there and {DEPTH} levels below for {METRICS} of a "
                f"benchmark or a study and for TensorBoard's {EVENTS} of a training run."
            )
        found |= {source.folder.resolve(): source for source in own}
    return _named(list(found.values()))


def _named(sources: Sequence[Source]) -> dict[str, Source]:
    """Sources by the name of their folder, with those of its parents where two have the same."""
    names: dict[str, Source] = {}
    for source in sources:
        parts, count = source.folder.resolve().parts[1:], 1
        while (name := "/".join(parts[-count:])) in names and count < len(parts):
            count += 1
        names[name] = source
    return names


def _search(folder: Path, depth: int) -> list[Source]:
    own: list[Source] = []
    if (folder / METRICS).is_file():
        own.append(_measured(folder))
    elif any(folder.glob(EVENTS)):
        own.append(_run(folder))
    if depth and not any(isinstance(source, Study) for source in own):
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not (path / CHANGES).is_file())
        own += [source for path in below for source in _search(path, depth - 1)]
    return own


def _measured(folder: Path) -> Benchmark | Study:
    """Reads the results of a benchmark or a study."""
    content = _json(folder / METRICS)
    if isinstance(content, dict) and content.keys() >= STUDY_KEYS:
        return Study(folder, content)
    entries = content if isinstance(content, list) else []
    if entries and all(isinstance(entry, dict) and entry.keys() >= ENTRY_KEYS for entry in entries):
        return Benchmark(
            folder, entries, _json(folder / "differences.json", []), _json(folder / "settings.json", {})
        )
    raise ValueError(
        f"{folder / METRICS} has an unknown schema. A benchmark's is a list of entries with "
        f"{', '.join(sorted(ENTRY_KEYS))}; a study's an object with {', '.join(sorted(STUDY_KEYS))}."
    )


def _run(folder: Path) -> Run:
    """Reads the scalars of a training run; of a step that was logged twice, as after a resume, the last."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    scalars = {}
    for tag in events.Tags()["scalars"]:
        points = {event.step: float(event.value) for event in events.Scalars(tag)}
        scalars[tag] = sorted(points.items())
    return Run(folder, scalars, _json(folder / "provenance.json", {}))


def _json(path: Path, default: Any = None) -> Any:
    """A file's content; the default, if there is one, for a file that is absent.

    Raises:
        ValueError: If it is no JSON.
    """
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error}); make it again.") from error
