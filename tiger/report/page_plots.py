"""Which plots a page of a report has, from the entries of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiger.evaluation.cost_model import BASELINE
from tiger.report.cost_line import cost_line, median_round_ms
from tiger.report.page_tables import is_drafted, is_timed
from tiger.report.plots import curves, history, intervals, scatter, survival
from tiger.report.sources import Run
from tiger.report.vector_graphics import Plot, Series, series

Cell = Mapping[str, Any]
# Groups of logged figures, by the beginning of their names; what fits none is shown last.
LOGGED = {
    "Rewards": ("reward/mean", "reward/std", "reward/zero_spread", "reward/expected"),
    "Acceptance": ("accept/length", "accept/ge_"),
    "KL and losses": ("reward/kl", "loss/"),
    "Draft and router": ("reward/entropy", "reward/draft_temperature", "router/", "gradient/"),
    "Speed and memory": ("speed/", "memory/"),
}
NAMES = {
    "reward/mean": "Mean reward",
    "reward/std": "Spread of the reward in a group",
    "reward/zero_spread": "Share of groups with zero spread",
    "reward/kl": "KL to the reference",
    "reward/entropy": "Entropy of the drafts",
    "reward/draft_temperature": "Draft temperature",
    "accept/length": "AccLen",
    **{f"accept/ge_{n}": f"Share of rounds with {n} or more accepted" for n in (2, 4, 8)},
    "loss/total": "Loss",
    "loss/kd": "KD loss",
    "loss/guidance": "Loss of the router's guidance",
    "gradient/drafter": "Gradient norm of the drafter",
    "gradient/router": "Gradient norm of the router",
    "speed/examples_per_second": "Examples per second",
    "speed/tokens_per_second": "Response tokens per second",
    "memory/peak_rss_gib": "Peak memory, GiB",
    "memory/peak_cuda_gib": "Peak GPU memory, GiB",
}


def plain_of(cells: Sequence[Cell]) -> Cell | None:
    """The autoregressive decoder's entry, if it was timed."""
    return next((cell for cell in cells if cell["decoder"] == BASELINE and cell["speedup"] is not None), None)


def benchmark_plots(cells: Sequence[Cell]) -> list[Plot]:
    """Accepted lengths, speed against AccLen, quality against latency, each where it was measured.

    Args:
        cells: Entries of `metrics.json` of one set, temperature and batch size.
    """
    names = [cell["decoder"] for cell in cells]
    names.sort(key=lambda name: name == BASELINE)  # drafters look the same with and without it
    looks = {look.label: look for look in series(names)}
    found = []
    if drafted := [cell for cell in cells if is_drafted(cell)]:
        found.append(survival({looks[cell["decoder"]]: cell["p_accept_ge"] for cell in drafted}))
    if plot := _speed_plot(cells, looks):
        found.append(plot)
    scored = [cell for cell in cells if cell["score"] is not None and cell["latency_s"] is not None]
    if scored:
        points = {looks[cell["decoder"]]: (1000 * cell["latency_s"], cell["score"]) for cell in scored}
        note = "Line: what no other decoder beats in both."
        title = f"Quality and latency ({scored[0]['metric']})"
        found.append(scatter(title, points, ("latency of an answer, ms", "score"), front=True, note=note))
    return found


def _speed_plot(cells: Sequence[Cell], looks: Mapping[str, Series]) -> Plot | None:
    """Speedup over AccLen with the line of the cost model; None where nothing was timed."""
    timed, plain = [cell for cell in cells if is_timed(cell)], plain_of(cells)
    if not timed or plain is None:
        return None
    middle = f"{median_round_ms(timed):.1f} ms, the median"
    note = f"Line: the cost model at a round of {middle}; above it, rounds are cheaper."
    if plain["dataset"] != plain["speed_dataset"]:
        note += f" AccLen is that of {plain['dataset']}, speed that of {plain['speed_dataset']}."
    points = {looks[cell["decoder"]]: (cell["acclen"], cell["speedup"]) for cell in timed}
    return scatter("Speed and AccLen", points, ("AccLen", "speedup"), cost_line(timed, plain), note=note)


def study_plots(content: Mapping[str, Any]) -> list[Plot]:
    """The plot that a study asks for; none while there is nothing to draw."""
    plot = content["plot"] or {}
    labels = {column["key"]: column["label"] for column in content["columns"]}
    looks = {look.label: look for look in series([cell["label"] for cell in content["cells"]])}
    cells = [cell for cell in content["cells"] if cell["status"] == "finished"]
    if plot.get("kind") == "histogram":
        where = next((c.get("where") for c in content["columns"] if c["key"] == plot.get("y")), None) or {}
        shares = {looks[cell["label"]]: share for cell in cells if (share := _pooled(cell["entries"], where))}
        return [survival(shares)] if shares else []
    key, across = plot.get("y") or "", plot.get("x") or ""
    known = [cell for cell in cells if (cell["values"].get(key) or {}).get("mean") is not None]
    if plot.get("kind") is None or not known or key not in labels:
        return []
    title = labels[key]
    if plot["kind"] == "line":
        return [
            curves(title, _lines(known, key, plot["series"]), (plot.get("axis") or _axis(known), labels[key]))
        ]
    if plot["kind"] == "scatter":
        points = {
            looks[cell["label"]]: (cell["values"][across]["mean"], cell["values"][key]["mean"])
            for cell in known
            if (cell["values"].get(across) or {}).get("mean") is not None
        }
        return [_compared(f"{labels[across]} and {title}", points, (across, key), labels)] if points else []
    return [intervals(title, [(cell["label"], cell["values"][key]) for cell in known], labels[key])]


def _compared(
    title: str, points: Mapping[Series, tuple[float, float]], keys: tuple[str, str], labels: Mapping[str, str]
) -> Plot:
    """One figure over another; where the first predicts the second, with the line of equality."""
    line, note = [], ""
    if keys == ("predicted_speedup", "speedup"):
        values = [value for point in points.values() for value in point]
        line = [(end, end) for end in (min(values), max(values))]
        note = "Line: as fast as the cost model says."
    return scatter(title, points, (labels[keys[0]], labels[keys[1]]), line, note=note)


def _axis(cells: Sequence[Cell]) -> str:
    """What labels such as `K = 8` all set; empty if they are of another kind."""
    names = {cell["label"].rpartition(" = ")[0] for cell in cells}
    return str(names.pop()) if len(names) == 1 else ""


def _lines(cells: Sequence[Cell], key: str, series_key: str | None) -> dict[str, list[dict[str, Any]]]:
    """Points of each line; cells without a place on the axis are left out."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["x"] is not None:
            name = (cell.get(series_key) or "") if series_key else ""
            lines.setdefault(str(name), []).append({"x": cell["x"], **cell["values"][key]})
    return lines


def _pooled(entries: Sequence[Cell], where: Mapping[str, Any]) -> dict[str, float]:
    """P(A >= n) over the rounds of all seeds: of the first set and lowest temperature a column reads."""
    drafted = [
        e for e in entries if is_drafted(e) and all(e.get(key) == value for key, value in where.items())
    ]
    lowest = min((entry["temperature"] for entry in drafted), default=None)
    first = [entry for entry in drafted if entry["temperature"] == lowest]
    first = [entry for entry in first if entry["dataset"] == first[0]["dataset"]]
    rounds = sum(entry["rounds"] for entry in first)
    depths = dict.fromkeys(n for entry in first for n in entry["p_accept_ge"])
    return {
        n: sum(entry["p_accept_ge"].get(n, 0.0) * entry["rounds"] for entry in first) / rounds for n in depths
    }


def training_plots(runs: Mapping[str, Run]) -> dict[str, list[Plot]]:
    """Every logged figure over the steps, all runs in one plot, by group."""
    looks = {look.label: look for look in series(list(runs))}
    tags = sorted({tag for run in runs.values() for tag in run.scalars})
    groups: dict[str, list[Plot]] = {}
    for group, beginnings in {**LOGGED, "Others": ("",)}.items():
        own = [tag for start in beginnings for tag in tags if tag.startswith(start)]
        tags = [tag for tag in tags if tag not in own]
        plots = []
        for tag in dict.fromkeys(own):
            drawn = {looks[name]: run.scalars[tag] for name, run in runs.items() if run.scalars.get(tag)}
            plots.append(history(NAMES.get(tag, tag), drawn))
        if plots:
            groups[group] = plots
    return groups
