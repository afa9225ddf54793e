import json
import re

import numpy as np
import pytest
from browser import HOSTILE, assert_self_contained, needs_browser, visit
from helpers import tiny_backbone, tiny_drafter
from PIL import Image

from tiger.backbones.base import Prompt
from tiger.backbones.grids import Grid
from tiger.backbones.videos import Video
from tiger.decoding.records import Generation, Round
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.evaluation.prompts import load_prompts
from tiger.report.trace_page import Trace, grids_of, trace_data, write_trace_page

# Walks through the page as a reader would.
WALK = """
  const look = () => seen.rounds.push({
    position: document.getElementById("position").textContent,
    views: [...document.querySelectorAll(".view")].map((view) => ({
      cells: view.querySelectorAll("svg .cell").length,
      kept: (view.querySelector(".text .now") || {}).textContent,
      drafted: view.querySelectorAll(".draft .token:not(.bonus)").length,
      done: view.classList.contains("done"),
    })),
  });
  seen.rounds = [];
  look();
  const slider = document.getElementById("round");
  slider.value = 2;
  slider.dispatchEvent(new Event("input"));
  look();
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
  look();
  seen.rounds_of_all = Number(slider.max);
  seen.bold = document.querySelectorAll("b").length - document.querySelectorAll(".phases b").length;
  seen.pictures = document.querySelectorAll("figure").length;
  seen.captions = [...document.querySelectorAll("figcaption")].map((node) => node.textContent);
  const toggle = document.querySelector(".toggles button");
  if (toggle) toggle.click();
  seen.shown = [...document.querySelectorAll(".view")].filter((view) => view.offsetHeight > 0).length;
"""


@pytest.fixture(scope="module")
def verifier():
    return tiny_backbone(layers=1)


@pytest.fixture(scope="module")
def traces(verifier):
    drafter = tiny_drafter(num_routed=5)
    requests = load_prompts("synthetic", 2)
    requests[0] = Prompt(HOSTILE, requests[0].images, id="hostile")
    answers = SpeculativeDecoder(verifier, drafter, 4, max_new_tokens=10).generate(requests)
    pairs = zip(requests, answers, strict=True)
    return [Trace(p, answer, grids_of(drafter.backbone, p), 1.5) for p, answer in pairs]


def payload(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_page_holds_the_whole_generation(traces, verifier, tmp_path):
    write_trace_page(tmp_path / "page.html", traces, verifier.tokenizer)
    data = payload((tmp_path / "page.html").read_text())
    assert [entry["prompt"] for entry in data] == [trace.prompt.text for trace in traces]
    for shown, trace in zip(data, traces, strict=True):
        (entry,) = shown["answers"]
        generation = trace.generation
        assert "".join(entry["tokens"]).startswith(generation.text.rstrip("\ufffd"))
        assert [r["accepted"] for r in entry["rounds"]] == [r.accepted for r in generation.rounds]
        assert entry["rounds"][0]["start"] == 1
        assert [(i["rows"], i["columns"]) for i in entry["images"]] == [(8, 8)]
        assert shown["pictures"][0].startswith("data:image/png;base64,")
        assert entry["images"][0]["picture"] == 0
        for shown, record in zip(entry["rounds"], generation.rounds, strict=True):
            rows = [8 * cell["row"] + cell["column"] for cell in shown["cells"]]
            assert rows == [row for row in record.route if row < 64]
            assert (shown["pooled"] is not None) == (64 in record.route)
            assert len(shown["drafted"]) == 4


def test_page_is_self_contained_and_safe(traces, verifier, tmp_path):
    write_trace_page(tmp_path / "page.html", traces, verifier.tokenizer, title=HOSTILE)
    page = (tmp_path / "page.html").read_text()
    assert_self_contained(page)
    assert page.count("</script>") == 2
    assert HOSTILE not in page


def test_rows_of_several_images_and_the_global_token():
    route = Round([7, 8, 9], 1, -1, 1, route=[0, 5, 6, 11, 12], scores=[0.0, 1.0, 2.0, 3.0, 4.0])
    image = Image.new("RGB", (400, 30))
    trace = Trace(
        Prompt("q", (image, image)),
        Generation("g", [1, 7], "ab", rounds=[route]),
        (Grid(1, 2, 3), Grid(2, 1, 3)),
    )
    data = trace_data(trace, tiny_backbone(layers=1).tokenizer)
    shown = data["rounds"][0]
    assert [(c["image"], c["frame"], c["row"], c["column"]) for c in shown["cells"]] == [
        *((0, 0, 0, 0), (0, 0, 1, 2), (1, 0, 0, 0), (1, 1, 0, 2))
    ]
    assert [c["strength"] for c in shown["cells"]] == [0, 0.25, 0.5, 0.75]
    assert shown["pooled"] == 1
    assert [d["fate"] for d in shown["drafted"]] == ["accepted", "unused", "unused"]
    assert data["images"][0]["uri"].startswith("data:image/jpeg")


def test_coarse_and_fine_views_share_their_picture():
    route = Round([7], 1, -1, 1, route=[3, 4, 9, 40, 63], scores=[0.0, 1.0, 2.0, 3.0, 4.0])
    image = Image.new("RGB", (30, 30))
    grids = (Grid(1, 2, 2), Grid(1, 4, 6, newlines=True, again=True))
    trace = Trace(Prompt("q", (image,) * 2), Generation("g", [1, 7], "ab", rounds=[route]), grids * 2)
    data = trace_data(trace, tiny_backbone(layers=1).tokenizer)
    assert [(i["rows"], i["columns"], i["tokens"]) for i in data["images"]] == [(4, 6, 32)] * 2
    places = [
        tuple(cell[key] for key in ("image", "row", "column", "height", "width"))
        for cell in data["rounds"][0]["cells"]
    ]
    assert places[:3] == [(0, 2, 3, 2, 3), (0, 0, 0, 1, 1), (0, 0, 5, 1, 1)]
    assert places[3:] == [(1, 0, 4, 1, 1), (1, 3, pytest.approx(5.8), 1, pytest.approx(0.2))]


def test_an_answer_whose_rounds_drafted_nothing(verifier):
    trace = Trace(Prompt("q"), Generation("g", [1, 7], "ab", rounds=[Round([], 0, 7, 1)]), ())
    data = trace_data(trace, verifier.tokenizer)
    assert (data["block"], data["acclen"]) == (1, 0)


def test_nothing_to_show(tmp_path, verifier):
    with pytest.raises(ValueError, match="no generation to show"):
        write_trace_page(tmp_path / "page.html", [], verifier.tokenizer)


@needs_browser
@pytest.mark.parametrize("width", [1200, 500])
def test_page_in_a_browser(traces, verifier, tmp_path, width):
    write_trace_page(tmp_path / "page.html", traces, verifier.tokenizer)
    seen = visit(tmp_path / "page.html", tmp_path, width, WALK)
    rounds = traces[0].generation.rounds
    assert seen["bold"] == 0
    assert [r["position"] for r in seen["rounds"][:2]] == [f"Round {n} of {len(rounds)}" for n in (1, 2)]
    assert seen["rounds"][2]["position"] > seen["rounds"][1]["position"]
    views = [view for (view,) in (r["views"] for r in seen["rounds"])]
    assert [v["cells"] for v in views[:2]] == [sum(row < 64 for row in r.route) for r in rounds[:2]]
    assert {v["drafted"] for v in views} == {4}


@needs_browser
@pytest.mark.parametrize("width", [1200, 500])
def test_decoders_side_by_side_on_images_and_video(verifier, tmp_path, width):
    frames = np.random.default_rng(0).integers(0, 255, (3, 64, 64, 3), dtype=np.uint8)
    prompt = Prompt(
        HOSTILE, (Image.new("RGB", (40, 20)), Image.new("RGB", (30, 30))), videos=(Video(frames, 2.0),)
    )
    grids = (Grid(1, 2, 2), Grid(1, 1, 2), Grid(2, 2, 2))
    route = {"route": [0, 5, 6, 13], "scores": [0.0, 1.0, 2.0, 3.0]}
    rounds = [Round([8, 9], 1, 7, 6, **route), Round([9, 8], 2, -1, 7, **route)]
    slow = Generation("g", [1, 8, 7, 9, 8], "ab", rounds=rounds, seconds=2.0)
    fast = Generation("g", [1, 8, 7, 9, 8], "ab", rounds=[Round([8, 7, 9, 8], 4, -1, 1)], seconds=1.0)
    names = {HOSTILE: slow, "head": fast}
    traces = [Trace(prompt, answer, grids, None, name) for name, answer in names.items()]
    write_trace_page(tmp_path / "page.html", traces, verifier.tokenizer, home="index.html")
    page = (tmp_path / "page.html").read_text()
    (data,) = payload(page)
    assert len(data["pictures"]) == 4
    assert HOSTILE not in page
    seen = visit(tmp_path / "page.html", tmp_path, width, WALK)
    assert (seen["pictures"], seen["rounds_of_all"], seen["bold"], seen["shown"]) == (8, 2, 0, 1)
    assert seen["captions"] == ["Image 1", "Image 2", "0 s", "1 s"] * 2
    first, second, _ = (r["views"] for r in seen["rounds"])
    assert [(v["cells"], v["drafted"], v["done"]) for v in first] == [(4, 2, False), (0, 4, False)]
    assert [(v["cells"], v["drafted"], v["done"]) for v in second] == [(4, 2, False), (0, 0, True)]
