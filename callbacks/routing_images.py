"""Pictures of where the router looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image, ImageDraw

from callbacks.run_folder import tensorboard
from tiger.backbones.grids import Grid, locate
from tiger.decoding.records import Generation, Round
from tiger.report.trace_page import grids_of

COLOUR = (255, 64, 32)
GAP = 6


class RoutingImages(Callback):
    """Draws the routed tokens on the pictures of a few validation examples, one panel per round.

    A routed cell is tinted by the strength of its score within the round, the strongest most; a frame around
    the panel is the global token. Goes to TensorBoard as router/0, router/1, ...

    Args:
        num_examples: Examples drawn per validation, the first ones with one picture and a route.
        num_rounds: Rounds drawn of each.
        scale: Enlargement of the pictures.
    """

    def __init__(self, num_examples: int = 4, num_rounds: int = 4, scale: int = 2) -> None:
        self.num_examples, self.num_rounds, self.scale = num_examples, num_rounds, scale
        self.drawn = 0

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts with the first examples again."""
        self.drawn = 0

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draws the examples of a batch until there are enough."""
        writer = tensorboard(trainer)
        if writer is None or trainer.sanity_checking or not trainer.is_global_zero:
            return
        generations: list[Generation] = outputs
        for example, generation in zip(batch.examples, generations, strict=True):
            rounds = [entry for entry in generation.rounds if entry.route][: self.num_rounds]
            if self.drawn >= self.num_examples or not rounds or len(example.prompt.images) != 1:
                continue
            drafter: Any = pl_module.drafter
            grids = grids_of(drafter.viewer, example.prompt)
            strip = draw_rounds(example.prompt.images[0], grids, rounds, self.scale)
            writer.add_image(
                f"router/{self.drawn}", np.asarray(strip), trainer.global_step, dataformats="HWC"
            )
            self.drawn += 1


def draw_rounds(
    picture: Image.Image, grids: Sequence[Grid], rounds: list[Round], scale: int = 2
) -> Image.Image:
    """Panels side by side, one per round, with the routed cells tinted.

    Args:
        picture: The picture of the prompt.
        grids: Where its visual tokens lie; a coarse and a fine view of it lie over one another.
        rounds: Rounds to draw.
        scale: Enlargement.
    """
    size = (picture.width * scale, picture.height * scale)
    strip = Image.new("RGB", (len(rounds) * (size[0] + GAP) - GAP, size[1]), "white")
    for index, entry in enumerate(rounds):
        panel = picture.convert("RGB").resize(size, Image.Resampling.NEAREST).convert("RGBA")
        panel.alpha_composite(_overlay(size, grids, entry))
        strip.paste(panel.convert("RGB"), (index * (size[0] + GAP), 0))
    return strip


def _overlay(size: tuple[int, int], grids: Sequence[Grid], entry: Round) -> Image.Image:
    """A transparent layer with the routed cells of one round; a newline token is a line at its row's end."""
    layer = Image.new("RGBA", size)
    draw = ImageDraw.Draw(layer)
    low, high = min(entry.scores), max(entry.scores)
    for token, score in zip(entry.route, entry.scores, strict=True):
        strength = (score - low) / (high - low) if high > low else 1.0
        colour = (*COLOUR, round(70 + 130 * strength))
        place = locate(token, grids)
        if place is None:
            draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline=colour, width=4)
            continue
        _, (_, rows, columns, *_), _, row, column = place
        left, top = column * size[0] // columns, row * size[1] // rows
        right, bottom = (column + 1) * size[0] // columns - 1, (row + 1) * size[1] // rows - 1
        if column == columns:
            left, right = size[0] - 3, size[0] - 1
        draw.rectangle((left, top, right, bottom), fill=colour)
    return layer
