"""One self-contained HTML page on which every round of a generation can be looked at on its images."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, select_autoescape
from PIL import Image

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.grids import Grid, locate
from tiger.decoding.records import ROOT, Generation, Round
from tiger.metrics.acceptance import AcceptanceMetrics
from tiger.report.pieces import piece, pieces

LONGEST_SIDE = 1024
SMALL_SIDE = 320
NEWLINE_WIDTH = 0.2  # of a column: a token that only marks the end of its row is drawn as a bar there


@dataclass(frozen=True)
class Trace:
    """One generation to show.

    Attributes:
        prompt: The request.
        generation: Its answer with round records.
        grids: Where the tokens of the drafter's visual bank lie: on the images, then on the videos.
        speedup: Against autoregressive decoding of the same prompt, None if not measured.
    """

    prompt: Prompt
    generation: Generation
    grids: tuple[Grid, ...] = ()
    speedup: float | None = None


def write_trace_page(
    path: Path, traces: Sequence[Trace], tokenizer: Any, title: str = "Rounds of TIGER"
) -> None:
    """Writes the page; it needs no other file and no network.

    Args:
        path: Target file.
        traces: One or more generations; the page switches between them.
        tokenizer: Turns token ids into text.
        title: Heading of the page.

    Raises:
        ValueError: If there is nothing to show.
    """
    if not traces:
        raise ValueError("There is no generation to show; give one trace or more.")
    data = [trace_data(trace, tokenizer) for trace in traces]
    # "<" is written as an escape, so that no text can end the script element that holds the data.
    payload = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    environment = Environment(loader=PackageLoader("tiger.report"), autoescape=select_autoescape())
    page = environment.get_template("trace.html").render(title=title, payload=payload)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


@torch.inference_mode()
def grids_of(backbone: Backbone, prompt: Prompt) -> tuple[Grid, ...]:
    """The token grids of a prompt's images and videos, as `backbone` reads them."""
    return backbone.encode([backbone.prepare(prompt)])[0].grids


def trace_data(trace: Trace, tokenizer: Any) -> dict[str, Any]:
    """What the page shows of one generation, as plain values."""
    generation = trace.generation
    block = max((r.depth for r in generation.rounds), default=1) or 1
    metric = AcceptanceMetrics(block)
    metric.update([generation])
    pictures = _pictures(trace)
    grids = tuple(grid for _, views in pictures for grid in views) or trace.grids
    rounds, start = [], 1
    for record in generation.rounds:
        rounds.append(_round_data(record, generation.tokens, start, grids, tokenizer))
        start += record.accepted + (record.bonus >= 0)
    return {
        "id": generation.id,
        "prompt": trace.prompt.text,
        "answer": generation.text,
        "finish": generation.finish,
        "images": [_image_data(image, views) for image, views in pictures],
        "tokens": pieces(tokenizer, generation.tokens),
        "block": block,
        "acclen": metric.compute()["acclen"],
        "seconds": generation.seconds,
        "prefill": generation.prefill_seconds,
        "speedup": trace.speedup,
        "rounds": rounds,
    }


def _pictures(trace: Trace) -> list[tuple[Image.Image, list[Grid]]]:
    """What to show with its grids: the images, and of each video the first frame of every group of frames."""
    images, videos, views = trace.prompt.images, trace.prompt.videos, _by_image(trace.grids)
    pictures = list(zip(images, views, strict=False))
    for video, (grid,) in zip(videos, views[len(images) :], strict=False):
        size = math.ceil(len(video.frames) / grid.frames)
        for group in range(grid.frames):
            frame = video.frames[min(group * size, len(video.frames) - 1)]
            pictures.append((Image.fromarray(frame), [grid._replace(frames=1)]))
    return pictures


def _round_data(
    record: Round, tokens: list[int], start: int, grids: tuple[Grid, ...], tokenizer: Any
) -> dict[str, Any]:
    """One round: drafted tokens with their fate, bonus, routed cells with their strength, and times."""
    contexts, drafted = {ROOT: tokens[:start]}, []
    for index, token in enumerate(record.drafted):
        context = contexts[record.parent(index)]
        fate = "accepted" if index < record.accepted else "rejected" if record.bonus >= 0 else "unused"
        drafted.append({"text": piece(tokenizer, context, token), "fate": fate})
        contexts[index] = [*context, token]
    kept = tokens[: start + record.accepted]
    cells, pooled = _cells(record, grids)
    return {
        "start": start,
        "drafted": drafted,
        "accepted": record.accepted,
        "bonus": piece(tokenizer, kept, record.bonus) if record.bonus >= 0 else None,
        "cells": cells,
        "pooled": pooled,
        "seconds": record.seconds,
    }


def _by_image(grids: Sequence[Grid]) -> list[list[Grid]]:
    """Grids of each image, the finest last."""
    images: list[list[Grid]] = []
    for grid in grids:
        if grid.again:
            images[-1].append(grid)
        else:
            images.append([grid])
    return images


def _cells(record: Round, grids: tuple[Grid, ...]) -> tuple[list[dict[str, Any]], float | None]:
    """Routed cells with their place and strength; the global token's strength if routed.

    Places are in cells of the image's finest grid. Strength is the score scaled to 0..1 over the round's
    routed tokens, 1 for all where scores are equal.
    """
    scores = record.scores or [0.0] * len(record.route)
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    finest = [views[-1] for views in _by_image(grids)]
    cells, pooled = [], None
    for token, score in zip(record.route, scores, strict=True):
        strength = (score - low) / (high - low) if high > low else 1.0
        place = locate(token, grids)
        if place is None:
            pooled = strength
            continue
        grid = place.grid
        height, width = finest[place.image].rows / grid.rows, finest[place.image].columns / grid.columns
        name = f"row {place.row + 1}, column {place.column + 1} of {grid.rows} x {grid.columns}"
        cell = {
            "image": place.image,
            "frame": place.frame,
            "row": place.row * height,
            "column": place.column * width,
            "height": height,
            "width": width,
            "name": name,
        }
        if place.column == grid.columns:
            bar = {"column": (place.column - NEWLINE_WIDTH) * width, "width": NEWLINE_WIDTH * width}
            cell |= bar | {"name": f"end of row {place.row + 1}"}
        cells.append(cell | {"score": score, "strength": strength})
    return cells, pooled


def _image_data(image: Image.Image, grids: Sequence[Grid]) -> dict[str, Any]:
    """An image as a data URI with its finest grid; large images are made smaller, small ones stay exact."""
    shown = image.convert("RGB")
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    small = max(shown.size) <= SMALL_SIDE
    buffer = io.BytesIO()
    shown.save(buffer, "PNG" if small else "JPEG", quality=88)
    kind = "png" if small else "jpeg"
    uri = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {
        "uri": uri,
        "width": shown.width,
        "height": shown.height,
        "rows": grids[-1].rows,
        "columns": grids[-1].columns,
        "tokens": sum(grid.size for grid in grids),
    }
