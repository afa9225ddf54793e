"""Plots as inline SVG that takes its colours from the page, so that one drawing serves light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Written by matplotlib, then replaced by the page's custom properties.
INK, SOFT, LINE, CARD = "#010201", "#010202", "#010203", "#010204"
PROPERTIES = {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)", CARD: "var(--card)"}
NUM_COLOURS = 8
PROPERTIES |= {f"#0103{index:02x}": f"var(--series-{index + 1})" for index in range(NUM_COLOURS)}
SHAPES = (("o", "●", "○"), ("s", "■", "□"), ("^", "▲", "△"), ("D", "◆", "◇"), ("v", "▼", "▽"))
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
WIDTH = 4.6  # inches: readable on a phone, two beside each other on a desk
STYLE: Any = {  # matplotlib types the names of its settings one by one
    "svg.fonttype": "none",
    "svg.hashsalt": "tiger",
    "text.parse_math": False,
    "font.size": 11,
    "axes.labelsize": 11,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@dataclass(frozen=True)
class Series:
    """How one of several things looks in a plot, by its place among them.

    Attributes:
        label: Its name.
        index: Its place.
    """

    label: str
    index: int

    @property
    def variable(self) -> str:
        """The page's custom property of its colour."""
        return f"--series-{self.index % NUM_COLOURS + 1}"

    @property
    def sign(self) -> str:
        """Its marker as a character, for legends."""
        return SHAPES[self.index % len(SHAPES)][1 if self._is_filled else 2]

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line with markers."""
        colour = f"#0103{self.index % NUM_COLOURS:02x}"
        face = colour if self._is_filled else CARD
        dash = DASHES[self.index // NUM_COLOURS % len(DASHES)]
        marker = SHAPES[self.index % len(SHAPES)][0]
        return {"color": colour, "linestyle": dash, "marker": marker, "markerfacecolor": face}

    @property
    def _is_filled(self) -> bool:
        return self.index // len(SHAPES) % 2 == 0


@dataclass(frozen=True)
class Plot:
    """A drawing for a page.

    Attributes:
        title: What it shows.
        svg: The drawing.
        legend: What is drawn, if there is more than one thing.
        note: How to read it.
    """

    title: str
    svg: Markup
    legend: Sequence[Series] = field(default_factory=tuple)
    note: str = ""


def series(labels: Sequence[str]) -> list[Series]:
    """One look for each label."""
    return [Series(label, index) for index, label in enumerate(labels)]


@contextmanager
def drawing(height: float = 3.0) -> Iterator[tuple[Figure, Axes]]:
    """A figure in the page's style, of this height in inches, with its axes."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.add_subplot()


def to_svg(figure: Figure, title: str) -> Markup:
    """The figure as an SVG element without declarations, metadata and identifiers that nothing refers to.

    Args:
        figure: Figure of `drawing`, inside its context.
        title: What it shows, for readers who do not see it.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = re.sub(r"<!--.*?-->\s*", "", buffer.getvalue()[buffer.getvalue().index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    for colour, variable in PROPERTIES.items():
        text = text.replace(colour, variable)
    label = Markup('<svg role="img" aria-label="{}"').format(title)
    return label + Markup(text.removeprefix("<svg"))
