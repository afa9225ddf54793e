"""The plots of a report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tiger.report.vector_graphics import CARD, INK, SOFT, Plot, Series, drawing, series, to_svg

Cell = Mapping[str, Any]
Point = tuple[float, float]
BEST_SCORE = 100  # of all metrics but CIDEr
FEW = 8  # places on an axis that are all named
MOST_POINTS = 240  # of a curve; longer ones are averaged


def survival(shares: Mapping[Series, Mapping[Any, float]]) -> Plot:
    """P(A >= n) of each decoder over n.

    Args:
        shares: P(A >= n) by n, by the look of a decoder.
    """
    with drawing() as (figure, axes):
        for look, values in shares.items():
            points = sorted((int(n), p) for n, p in values.items())
            axes.plot(*zip(*points, strict=True), **look.line)
        axes.set(
            xlabel="accepted tokens in a round, n", ylabel="share of rounds with n or more", ylim=(0, 1.02)
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
        return Plot(
            "Accepted length", to_svg(figure, "Share of rounds with n or more accepted"), list(shares)
        )


def scatter(
    title: str,
    points: Mapping[Series, Point],
    labels: tuple[str, str],
    curve: Sequence[Point] = (),
    front: bool = False,
    note: str = "",
) -> Plot:
    """One point for each decoder.

    Args:
        title: What it shows.
        points: Place of each decoder, by its look.
        labels: Names of the axes.
        curve: A line to draw behind the points.
        front: Whether to join the points that no other one beats, where lower x and higher y are better.
        note: How to read it.
    """
    with drawing() as (figure, axes):
        if curve:
            axes.plot(*zip(*curve, strict=True), color=SOFT, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        if front:
            best = pareto(list(points.values()))
            axes.step(*zip(*best, strict=True), where="post", color=SOFT, linewidth=1.2, zorder=1)
        for look, (x, y) in points.items():
            axes.plot(x, y, **look.line | {"linestyle": "none", "markersize": 8, "zorder": 3})
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.margins(0.12)
        if front and max(y for _, y in points.values()) <= BEST_SCORE:
            axes.set_ylim(top=min(axes.get_ylim()[1], 1.02 * BEST_SCORE))
        return Plot(title, to_svg(figure, title), list(points), note)


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats, by ascending x; lower x and higher y are better."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


def intervals(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]], label: str) -> Plot:
    """Means with their intervals, one below the other.

    Args:
        title: What it shows.
        rows: Label, and `mean`, `low`, `high` and `seeds` of each.
        label: Name of the axis.
    """
    with drawing(0.9 + 0.36 * len(rows)) as (figure, axes):
        for place, (_, value) in enumerate(rows):
            look = Series("", 0).line
            low, high = value.get("low"), value.get("high")
            if low is not None and high is not None:
                axes.plot([low, high], [place, place], color=look["color"], linewidth=2.4)
            seeds = [seed for seed in value.get("seeds") or () if seed is not None]
            axes.plot(seeds, [place] * len(seeds), "|", color=SOFT, markersize=9)
            axes.plot(value["mean"], place, **look | {"markersize": 8, "markeredgecolor": CARD})
        names = [textwrap.shorten(name, 60, placeholder="…") for name, _ in rows]
        axes.set_yticks(range(len(rows)), [textwrap.fill(name, 22) for name in names], color=INK)
        axes.set(xlabel=label, ylim=(len(rows) - 0.4, -0.6))
        axes.grid(False, axis="y")
        return Plot(title, to_svg(figure, title), (), "Dot: mean; bar: 95 % interval; ticks: single seeds.")


def curves(title: str, groups: Mapping[str, Sequence[Mapping[str, Any]]], labels: tuple[str, str]) -> Plot:
    """Means over a number, with their intervals as a band.

    Args:
        title: What it shows.
        groups: `x`, `mean`, `low` and `high` of the points of each line, by its name.
        labels: Names of the axes.
    """
    looks = series(list(groups))
    with drawing() as (figure, axes):
        for look, points in zip(looks, groups.values(), strict=True):
            points = sorted(points, key=lambda point: float(point["x"]))
            x = [point["x"] for point in points]
            low, high = (
                [point["mean"] if point.get(end) is None else point[end] for point in points]
                for end in ("low", "high")
            )
            axes.fill_between(x, low, high, color=look.line["color"], alpha=0.16, linewidth=0)
            axes.plot(x, [point["mean"] for point in points], **look.line)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        places = sorted({float(point["x"]) for points in groups.values() for point in points})
        if len(places) <= FEW:
            axes.set_xticks(places, [f"{place:g}" for place in places])
        note = "Band: 95 % interval."
        return Plot(title, to_svg(figure, title), looks if len(looks) > 1 else (), note)


def history(title: str, runs: Mapping[Series, Sequence[tuple[int, float]]]) -> Plot:
    """A logged figure over the steps of training.

    Args:
        title: What it shows.
        runs: Steps and values of each run, by its look.
    """
    with drawing(2.5) as (figure, axes):
        for look, points in runs.items():
            drawn = _thinned(points)
            style = look.line if len(drawn) <= 25 else look.line | {"marker": "none", "linewidth": 1.4}
            axes.plot(drawn[:, 0], drawn[:, 1], **style | {"markersize": 4})
        axes.set_xlabel("step")
        _whole_steps(axes)
        return Plot(title, to_svg(figure, title))


def _whole_steps(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _thinned(points: Sequence[tuple[int, float]]) -> np.ndarray:
    """Points [P, 2], averaged in groups where they are more than a plot can show."""
    values = np.array(points, dtype=float)
    groups = np.array_split(values, min(len(values), MOST_POINTS))
    return np.array([group.mean(0) for group in groups])
