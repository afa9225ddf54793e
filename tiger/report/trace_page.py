"""One self-contained HTML page on which every round of a generation can be looked at on its images."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.grids import Grid, locate
from tiger.decoding.records import ROOT, Generation, Round
from tiger.metrics.acceptance import AcceptanceMetrics
from tiger.report.page import write_page
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
        decoder: Name to tell it from other answers to the same prompt.
    """

    prompt: Prompt
    generation: Generation
    grids: tuple[Grid, ...] = ()
    speedup: float | None = None
    decoder: str = ""


def write_trace_page(
    path: Path,
    traces: Sequence[Trace],
    tokenizer: Any,
    title: str = "Rounds of TIGER",
    home: str | None = None,
) -> None:
    """Writes the page; it needs no other file and no network.

    Args:
        path: Target file.
        traces: One or more generations. Neighbours with the same prompt stand side by side, and the page
            switches between prompts.
        tokenizer: Turns token ids into text.
        title: Heading of the page.
        home: Page to lead back to.

    Raises:
        ValueError: If there is nothing to show.
    """
    if not traces:
        raise ValueError("There is no generation to show; give one trace or more.")
    groups = groupby(traces, key=lambda trace: id(trace.prompt))
    data = [_prompt_data(list(group), tokenizer) for _, group in groups]
    # "<" is written as an escape, so that no text can end the script element that holds the data.
    payload = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    write_page(path, "trace.html", title=title, payload=payload, home=home)


def _prompt_data(traces: Sequence[Trace], tokenizer: Any) -> dict[str, Any]:
    """All answers to one prompt; each picture is held once, however many of them show it."""
    answers = [trace_data(trace, tokenizer) for trace in traces]
    pictures: dict[str, int] = {}
    for image in (image for answer in answers for image in answer["images"]):
        image["picture"] = pictures.setdefault(image.pop("uri"), len(pictures))
    return {"prompt": traces[0].prompt.text, "pictures": list(pictures), "answers": answers}


@torch.inference_mode()
def grids_of(backbone: Backbone, prompt: Prompt) -> tuple[Grid, ...]:
    """The token grids of a prompt's images and videos, as `backbone` reads them."""
    return backbone.encode([backbone.prepare(prompt)])[0].grids


def trace_data(trace: Trace, tokenizer: Any) -> dict[str, Any]:
    """What the page shows of one generation, as plain values."""
    generation = trace.generation
    block = max((r.depth for r in generation.rounds), default=1) or 1
    metric = AcceptanceMetrics(block, sync_on_compute=False)  # of this answer, whatever other ranks do
    metric.update([generation])
    pictures = _pictures(trace)
    grids = tuple(grid for picture in pictures for grid in picture.views) or trace.grids
    rounds, start = [], 1
    for record in generation.rounds:
        rounds.append(_round_data(record, generation.tokens, start, grids, tokenizer))
        start += record.accepted + (record.bonus >= 0)
    return {
        "id": generation.id,
        "decoder": trace.decoder,
        "answer": generation.text,
        "finish": generation.finish,
        "images": [_image_data(picture) for picture in pictures],
        "tokens": pieces(tokenizer, generation.tokens),
        "block": block,
        "acclen": metric.compute()["acclen"],
        "seconds": generation.seconds,
        "prefill": generation.prefill_seconds,
        "speedup": trace.speedup,
        "rounds": rounds,
    }


class _Picture(NamedTuple):
    """A picture to show, its grids with the finest last, and its name where that says more than a number."""

    image: Image.Image
    views: list[Grid]
    name: str = ""


def _pictures(trace: Trace) -> list[_Picture]:
    """What to show: the images, and of each video the first frame of every group of frames."""
    images, videos, views = trace.prompt.images, trace.prompt.videos, _by_image(trace.grids)
    numbers = [
        f"Image {number}" if len(images) + len(videos) > 1 else "" for number in range(1, len(images) + 1)
    ]
    pictures = [_Picture(*entry) for entry in zip(images, views, numbers, strict=False)]
    for video, (grid,) in zip(videos, views[len(images) :], strict=False):
        size = math.ceil(len(video.frames) / grid.frames)
        for group in range(grid.frames):
            index = min(group * size, len(video.frames) - 1)
            name = f"{index / video.fps:.3g} s"
            pictures.append(_Picture(Image.fromarray(video.frames[index]), [grid._replace(frames=1)], name))
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


def _image_data(picture: _Picture) -> dict[str, Any]:
    """An image as a data URI with its finest grid; large images are made smaller, small ones stay exact."""
    shown, grids = picture.image.convert("RGB"), picture.views
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    small = max(shown.size) <= SMALL_SIDE
    buffer = io.BytesIO()
    shown.save(buffer, "PNG" if small else "JPEG", quality=88)
    kind = "png" if small else "jpeg"
    uri = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {
        "uri": uri,
        "name": picture.name,
        "width": shown.width,
        "height": shown.height,
        "rows": grids[-1].rows,
        "columns": grids[-1].columns,
        "tokens": sum(grid.size for grid in grids),
    }
