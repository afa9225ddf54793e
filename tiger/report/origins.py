"""Where the results of a report come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiger.report.sources import Run, Source, Study


def origin(source: Source) -> dict[str, str]:
    """Folder, command, commit, time, hardware and versions, each where it was recorded."""
    if isinstance(source, Study):
        return _of_study(source)
    record = source.provenance if isinstance(source, Run) else source.settings.get("provenance", {})
    return _of_record(source.folder, record)


def _of_record(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    """Where results come from, as `tiger.evaluation.provenance` recorded it."""
    git, hardware = record.get("git", {}), record.get("hardware", {})
    commit = git.get("commit", "")[:12] + (" with changes" if git.get("dirty") else "")
    machine = [str(hardware.get("platform", "")), f"{hardware['cpus']} CPUs" if hardware else ""]
    machine += hardware.get("gpus", [])
    shown = {"Folder": str(folder), "Command": record.get("command", ""), "Commit": commit}
    shown |= {"Started": record.get("time", ""), "Hardware": ", ".join(filter(None, machine))}
    return {key: value for key, value in (shown | _versions(record)).items() if value}


def _of_study(source: Study) -> dict[str, str]:
    record = source.content.get("provenance") or {}
    shown = {"Folder": str(source.folder), "Command": source.content.get("command") or ""}
    commit = (record.get("commit") or "")[:12] + (" with changes" if record.get("dirty") else "")
    shown |= {"Commit": commit, "Config": record.get("config_hash") or ""}
    shown |= {"Started": record.get("started") or "", "Finished": record.get("finished") or ""}
    shown |= {"Hardware": str(record.get("hardware") or "")}
    return {key: value for key, value in (shown | _versions(record)).items() if value}


def _versions(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())
    }
