"""The `export` verb: a drafter's folder in, a folder to publish out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tiger.backbones.base import Backbone
from tiger.backbones.folders import commit_of, model_files, resolve
from tiger.backbones.loading import check_pair, load_backbone
from tiger.drafting.heads.base import DraftHead
from tiger.drafting.heads.foreign import import_head
from tiger.drafting.heads.saving import SETTINGS_FILE as HEAD_FILE
from tiger.drafting.heads.saving import is_head, load_head, save_head
from tiger.drafting.heads.speculators import save_speculators
from tiger.drafting.routed import RoutedDrafter
from tiger.drafting.saving import PLAIN, load_drafter
from tiger.drafting.saving import SETTINGS_FILE as DRAFTER_FILE
from tiger.evaluation.cost_model import BASELINE
from tiger.report.model_card import ROUTED, Card

FORMATS = ("tiger", "speculators")
# Entries of head.json that are no notes of its training.
FIXED = ("method", "settings", "verifier", *PLAIN)


def export(
    drafter: str,
    output: Path,
    verifier: str | None = None,
    metrics: Path | None = None,
    decoder: str | None = None,
    format: Literal["tiger", "speculators"] = "tiger",
    dtype: str = "float32",
) -> Path:
    """Writes a folder to publish: configuration, safetensors, and a model card with what was measured.

    Args:
        drafter: Folder, hub id or shipped name of a routed drafter or a draft head; of a head also in the
            layout of speculators (EAGLE-3) or as the authors of EAGLE-2, EAGLE-3 and ViSpec save it.
        output: Folder to create; its name is that of the card.
        verifier: The same for the verifier, which heads need.
        metrics: The `metrics.json` of a benchmark, for the card.
        decoder: Name of the drafter there; null if it is the only one.
        format: Layout to write: that of TIGER, or of vLLM's speculators for EAGLE-3 heads.
        dtype: Name of a torch dtype, for heads whose layout changes; others are copied as they are.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: If a folder, its weights or the metrics are missing.
        ValueError: If the output exists, a head has no verifier or belongs to another one, the format does
            not hold this drafter, or the metrics are not those of this drafter.
    """
    if output.exists():
        raise ValueError(f"{output} exists already; name a folder that does not, or remove it.")
    if format not in FORMATS:
        raise ValueError(f"Unknown format {format!r}; choose one of {', '.join(FORMATS)}.")
    source = resolve(drafter)
    backbone = None if verifier is None else load_backbone(verifier, dtype)
    loaded = _load(source, backbone, dtype)
    weights = sum(parameter.numel() for parameter in loaded.parameters())
    cells = [] if metrics is None else _cells(metrics, decoder, weights)
    if isinstance(loaded, DraftHead):
        method, settings = loaded.method, loaded.settings
    else:
        method, settings = ROUTED, {key: getattr(loaded, key) for key in PLAIN}
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output.parent) as temporary:
        folder = Path(temporary) / output.name
        folder.mkdir()
        card = Card(
            name=output.name,
            method=method,
            format=format,
            parameters=weights,
            settings=settings,
            notes=_write(loaded, source, folder, verifier, format),
            verifier=verifier,
            is_on_hub=verifier is not None and commit_of(resolve(verifier)) is not None,
            sizes={} if backbone is None else _sizes(backbone),
            cells=cells,
        )
        (folder / "README.md").write_text(card.text(), encoding="utf-8")
        folder.rename(output)
    print(f"Written to {output}")
    return output


def _load(folder: Path, verifier: Backbone | None, dtype: str) -> RoutedDrafter | DraftHead:
    """The drafter of a folder, which shows that it can be loaded, and beside this verifier."""
    if (folder / DRAFTER_FILE).is_file():
        routed = load_drafter(str(folder), dtype)
        if verifier is not None:
            check_pair(verifier, routed.backbone)
        return routed
    if verifier is None:
        raise ValueError(
            f"{folder} holds no routed drafter, and a draft head is read beside its verifier: give "
            "--verifier NAME."
        )
    return load_head(folder, verifier) if is_head(folder) else import_head(folder, verifier)


def _write(
    drafter: RoutedDrafter | DraftHead, source: Path, target: Path, verifier: str | None, format: str
) -> dict[str, Any]:
    """Writes the files but the card; returns the notes on the drafter's training."""
    files = [source / name for name in (DRAFTER_FILE, HEAD_FILE) if (source / name).is_file()]
    saved = json.loads(files[0].read_text()) if files else {"imported_from": source.name}
    notes = {key: value for key, value in saved.items() if key not in FIXED}
    if format == "speculators":
        if not isinstance(drafter, DraftHead):
            raise ValueError(
                "The format 'speculators' holds EAGLE-3 heads, and this is a routed drafter. Use the format "
                "'tiger'."
            )
        save_speculators(drafter, target, str(verifier))
    elif files:
        for file in model_files(source):
            shutil.copyfile(file, target / file.name)
    elif isinstance(drafter, DraftHead):
        save_head(drafter, target, **notes)
    return notes


def _sizes(verifier: Backbone) -> dict[str, int]:
    return {
        "weights": sum(parameter.numel() for parameter in verifier.parameters()),
        "layers": verifier.num_layers,
        "width": verifier.hidden_size,
        "vocabulary": verifier.vocab_size,
    }


def _cells(file: Path, decoder: str | None, parameters: int) -> list[dict[str, Any]]:
    """The entries of a benchmark that are about this drafter."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}; give the metrics.json of a benchmark.")
    cells: list[dict[str, Any]] = json.loads(file.read_text())
    names = sorted({cell["decoder"] for cell in cells} - {BASELINE})
    chosen = names[0] if decoder is None and len(names) == 1 else decoder
    if chosen not in names:
        raise ValueError(f"{file} has the decoders {names}; say which one this is: --decoder NAME.")
    found = [cell for cell in cells if cell["decoder"] == chosen]
    sizes = {cell["parameters"] for cell in found}
    if sizes != {parameters}:
        raise ValueError(
            f"The decoder {chosen!r} of {file} has {sorted(sizes)} weights, the drafter {parameters}: these "
            "are the figures of another one. Name the right decoder, or run the benchmark with this drafter."
        )
    return found
