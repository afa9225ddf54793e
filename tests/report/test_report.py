import json
import re
import shutil
from pathlib import Path

import pytest
from browser import HOSTILE, assert_self_contained, needs_browser, visit
from report_inputs import entry, study, write_benchmark, write_run, write_study

from tiger.cli import main
from tiger.evaluation.cost_model import predicted_speedup
from tiger.report.cost_line import cost_line
from tiger.report.key_figures import Figure, changes
from tiger.report.plots import pareto
from tiger.report.sources import CHANGES, find_sources
from tiger.report.study_tables import study_result

PAGES = ("index", "bench", "bars", "line", "histogram", "scatter", "training")
ROOT = Path(__file__).parents[2]
STYLE = "tiger/report/templates/style.css"
LOOK = """
  seen.bold = document.querySelectorAll("b").length;
  seen.plots = document.querySelectorAll(".plot svg").length;
  seen.rows = [...document.querySelectorAll("tbody tr")].map((row) =>
    [...row.children].map((field) => field.innerText.trim().split(/\\n+/)));
  seen.links = [...document.querySelectorAll("a")].map((link) => link.getAttribute("href"));
  seen.small = [...document.querySelectorAll(".plot svg")].filter((plot) =>
    plot.getBoundingClientRect().width < 250).length;
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    write_benchmark(root / "bench")
    for kind in ("bars", "line", "histogram", "scatter"):
        write_study(root / "ablation" / kind, kind=kind)
    write_run(root / "runs" / "align")
    write_run(root / "runs" / "continued", reward=0.02)
    return root


@pytest.fixture(scope="module")
def pages(folders, tmp_path_factory):
    output = tmp_path_factory.mktemp("report")
    page = main(["report", *map(str, sorted(folders.iterdir())), "-o", str(output)])
    assert page == output / "index.html"
    return output


def test_every_folder_is_recognised_by_what_it_holds(folders):
    found = {name: type(source).__name__ for name, source in find_sources([folders]).items()}
    studies = dict.fromkeys(("bars", "histogram", "line", "scatter"), "Study")
    assert found == studies | {"bench": "Benchmark", "align": "Run", "continued": "Run"}


def test_runs_below_a_benchmark_are_found_and_those_below_a_study_are_not(tmp_path):
    write_benchmark(tmp_path / "demo")
    write_run(tmp_path / "demo" / "kd")
    write_study(tmp_path / "ablation" / "sparsity")
    write_run(tmp_path / "ablation" / "sparsity" / "k8")
    write_study(tmp_path / "again" / "sparsity")
    write_benchmark(tmp_path / "again" / "job")
    (tmp_path / "again" / "job" / CHANGES).touch()
    assert list(find_sources([tmp_path])) == ["sparsity", "again/sparsity", "demo", "kd"]
    assert list(find_sources([tmp_path / "again" / "job"])) == ["job"]


def test_a_study_in_a_line():
    cells = [
        {"name": name, "label": name.upper(), "values": {"speed": {"mean": 1.0}, "acclen": {"mean": mean}}}
        for name, mean in (("a", 2.0), ("b", 5.126), ("c", None))
    ]
    columns = [
        {"key": "speed", "label": "Speed", "digits": 1},
        {"key": "acclen", "label": "AccLen", "digits": 2},
    ]
    content = {"contrasts": [], "plot": {"y": "acclen"}, "columns": columns, "cells": cells}
    assert study_result(content) == "AccLen 2.00 (A) to 5.13 (B)"
    contrast = {
        "label": "b over a",
        "left": "b",
        "right": "a",
        "key": "acclen",
        "mean": 3.1,
        "low": -1,
        "high": 4,
    }
    content["contrasts"] = [contrast]
    assert study_result(content) == "No contrast is clear: each interval includes zero."
    content["contrasts"] = [contrast | {"low": 2.0}, contrast, contrast | {"label": "c", "low": 3.0}]
    assert study_result(content) == "b over a +3.10 AccLen [+2.00, +4.00]; c +3.10 AccLen [+3.00, +4.00]"
    assert study_result(content | {"contrasts": [], "cells": cells[2:]}) == "Nothing to compare yet."


def test_pages_are_self_contained(pages):
    assert {path.stem for path in pages.glob("*.html")} == set(PAGES)
    for name in PAGES:
        assert_self_contained((pages / f"{name}.html").read_text())


@needs_browser
@pytest.mark.parametrize("width", [1200, 500])
def test_pages_in_a_browser(folders, pages, tmp_path, width):
    seen = {name: visit(pages / f"{name}.html", tmp_path, width, LOOK) for name in PAGES}
    counts = {"index": 0, "bench": 6, "bars": 1, "line": 1, "histogram": 1, "scatter": 1, "training": 8}
    assert {name: page["plots"] for name, page in seen.items()} == counts
    assert all(page["small"] <= (name == "training") for name, page in seen.items())  # one is folded away
    local = {link for page in seen.values() for link in page["links"]}
    assert all((pages / link).is_file() for link in local)
    cells = {
        cell["decoder"]: cell for cell in json.loads((folders / "bench" / "metrics.json").read_text())[:4]
    }
    for row in seen["bench"]["rows"][1:4]:
        cell = cells[row[0][0]]
        interval = f"[{cell['acclen_low']:.2f}, {cell['acclen_high']:.2f}]"
        assert row[1] == [f"{cell['acclen']:.2f}", interval]
        assert row[4] == [f"{cell['p_accept_ge']['8']:.2f}"]
    assert seen["index"]["rows"][0][:3] == [["tiger"], ["4.12", "[4.04, 4.20]"], ["1.48×", "[1.43, 1.54]"]]
    values = study()["cells"][1]["values"]["acclen"]
    assert seen["line"]["rows"][1][1] == [f"{values['mean']:.2f}", "[3.90, 4.30]"]
    assert seen["line"]["rows"][3] == [["All tokens"], ["failed"], ["failed"]]
    assert seen["line"]["rows"][4] == [["K = 4"], ["3.12"]]


def test_the_papers_figures_stand_beside_ours_only_for_its_pair(pages, tmp_path):
    other = (pages / "bars.html").read_text()
    assert "The paper&#39;s, Table 4: LLaVA-v1.6 7B" in other
    assert "Another pair: compare the order" in other
    write_study(tmp_path / "real", pair="LLaVA-v1.6 7B, COCO Caption")
    main(["report", str(tmp_path / "real"), "-o", str(tmp_path / "report")])
    page = (tmp_path / "report" / "real.html").read_text()
    assert "Another pair" not in page
    headings = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert headings[:4] == ["Cell", "AccLen", "Paper, Table 4", "Spd."]
    assert "make ablation STUDY=sparsity" in page
    assert "runs/ablation/sparsity/all.log" in page


@needs_browser
def test_hostile_texts_are_shown_as_they_are(tmp_path):
    cells = [entry(name) for name in ("autoregressive", HOSTILE, "$x_{$")]
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "metrics.json").write_text(json.dumps(cells))
    rows = study()["cells"]
    rows[0] |= {"label": HOSTILE, "group": HOSTILE}
    write_study(tmp_path / "study", title=HOSTILE, question=HOSTILE, command=HOSTILE, cells=rows)
    write_run(tmp_path / "run")
    main(["report", str(tmp_path), "-o", str(tmp_path / "report")])
    for path in (tmp_path / "report").glob("*.html"):
        assert HOSTILE not in path.read_text()
    for name in ("index", "bench", "study"):
        assert visit(tmp_path / "report" / f"{name}.html", tmp_path, 500, LOOK)["bold"] == 0


def test_what_has_changed_is_said_with_signs(folders, tmp_path):
    shutil.copytree(folders / "bench", tmp_path / "bench")
    words = ["report", str(tmp_path / "bench"), "-o", str(tmp_path / "report")]
    page = main(words)
    assert "This is the first report here" in page.read_text()
    main(words)
    assert "No figure has changed." in page.read_text()
    cells = json.loads((tmp_path / "bench" / "metrics.json").read_text())
    for cell, change in zip(cells[1:4], (-0.5, 0.03, 0.5), strict=True):
        cell |= {key: cell[key] + change for key in ("acclen", "acclen_low", "acclen_high")}
    (tmp_path / "bench" / "metrics.json").write_text(json.dumps(cells))
    shutil.copytree(tmp_path / "report", tmp_path / "before")
    main(words)
    shown = re.findall(r'<td class="(\w+)">([+−][\d.]+)', page.read_text())
    assert sorted(shown) == [("better", "+0.50"), ("open", "+0.03"), ("worse", "−0.50")]
    main(words)
    assert "No figure has changed." in page.read_text()
    main([*words, "--previous", str(tmp_path / "before")])
    assert len(re.findall(r'<td class="(?:better|worse|open)">', page.read_text())) == 3
    figures = json.loads((tmp_path / "report" / "report.json").read_text())["figures"]
    assert figures[0]["where"].startswith("bench: autoregressive on synthetic")


def test_verdicts_follow_the_direction_of_a_figure():
    figure = Figure("x", "latency", 3.0, 1, False)
    assert [c.verdict for c in changes([figure], {("x", "latency"): 2.0})] == ["worse"]
    assert changes([figure], {("x", "latency"): 3.01}) == []
    neutral = Figure("x", "latency", 3.0, 1, None)
    assert [c.verdict for c in changes([neutral], {("x", "latency"): 2.0})] == ["open"]


def test_cost_model_by_hand():
    plain = {"tokens_per_second": 10.0, "latency_s": 2.1, "batch_size": 1}  # 21 tokens
    cell = {"acclen": 4.0, "first_token_s": 0.1, "phase_ms": {"draft": 100.0, "verify": 150.0}}
    assert predicted_speedup(cell, plain) == pytest.approx(2.1 / (0.1 + 20 / 5 * 0.25))
    line = cost_line([cell, cell | {"acclen": 5.0}], plain)
    assert (line[0][0], line[-1][0]) == (pytest.approx(3.7), pytest.approx(5.3))
    assert line[0][1] < line[-1][1]


def test_pareto_front():
    assert pareto([(2, 5), (1, 3), (3, 4), (1, 2), (4, 6)]) == [(1, 3), (2, 5), (4, 6)]


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_in_light_and_dark(pytestconfig):
    light, dark = (pytestconfig.rootpath / STYLE).read_text().split("@media (prefers-color-scheme: dark)")
    colours = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]
    for scheme in (colours[0], colours[0] | colours[1]):
        for ground in ("page", "card"):
            texts = [
                contrast(scheme[name], scheme[ground]) for name in ("ink", "soft", "accepted", "rejected")
            ]
            assert min(texts) >= 4.5
            assert min(contrast(scheme[f"series-{n}"], scheme[ground]) for n in range(1, 9)) >= 3


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "unknown schema"), ('[{"decoder": "x"}]', "unknown schema"), ("{", "is no JSON")],
)
def test_an_unknown_schema_is_named(tmp_path, content, message):
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        main(["report", str(tmp_path), "-o", str(tmp_path / "report")])


def test_errors_say_what_was_looked_for(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    output = ["-o", str(tmp_path / "report")]
    with pytest.raises(FileNotFoundError, match=r"2 levels below for metrics.json .* events.out.tfevents"):
        main(["report", str(tmp_path / "empty"), *output])
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        main(["report", str(tmp_path / "nowhere"), *output])
    bench = str(folders / "bench")
    with pytest.raises(FileNotFoundError, match=r"has no report\.json"):
        main(["report", bench, *output, "--previous", str(tmp_path / "empty")])
    with pytest.raises(ValueError, match="traces is -1"):
        main(["report", bench, *output, "--traces", "-1"])
    write_benchmark(tmp_path / "old", settings=False)
    with pytest.raises(ValueError, match="does not say which drafters"):
        main(["report", str(tmp_path / "old"), *output, "--traces", "1"])


def test_the_example_in_the_documentation_is_whole():
    pages = {page.name: page.read_text() for page in (ROOT / "docs/example_report").glob("*.html")}
    linked = {link for text in pages.values() for link in re.findall(r'href="([^"#]+[.]html)', text)}
    assert {"components.html", "methods-rounds.html", "training.html"} <= linked <= pages.keys()
    for text in pages.values():
        assert_self_contained(text)
        assert str(Path.home()) not in text
