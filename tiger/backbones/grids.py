"""Where visual tokens lie on their picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Grid(NamedTuple):
    """A run of visual tokens that covers a picture row by row, frame by frame.

    Attributes:
        frames: Frames, 1 for a picture.
        rows: Rows of a frame.
        columns: Columns of a frame.
        newlines: Whether each row is followed by a token that only marks its end.
        again: Whether the run shows the picture of the run before it once more, at another resolution.
    """

    frames: int
    rows: int
    columns: int
    newlines: bool = False
    again: bool = False

    @property
    def width(self) -> int:
        """Tokens of a row."""
        return self.columns + self.newlines

    @property
    def size(self) -> int:
        """Tokens of the run."""
        return self.frames * self.rows * self.width


class Place(NamedTuple):
    """Where one visual token lies.

    Attributes:
        image: Index of its picture.
        grid: The grid it belongs to.
        frame: Frame.
        row: Row.
        column: Column; a newline token stands behind the last one, in column `grid.columns`.
    """

    image: int
    grid: Grid
    frame: int
    row: int
    column: int


def locate(token: int, grids: Sequence[Grid]) -> Place | None:
    """The place of a row of a visual bank; None for the global token, which lies behind the grids.

    Args:
        token: Bank row.
        grids: Grids of the bank.
    """
    image = -1
    for grid in grids:
        image += not grid.again
        if token < grid.size:
            frame, cell = divmod(token, grid.rows * grid.width)
            return Place(image, grid, frame, *divmod(cell, grid.width))
        token -= grid.size
    return None


def newline_tokens(grids: Sequence[Grid]) -> list[bool]:
    """Whether each token of grids only marks the end of a row, in token order."""
    marks: list[bool] = []
    for grid in grids:
        marks += ([False] * grid.columns + [True] * grid.newlines) * (grid.frames * grid.rows)
    return marks
