import json
import re
import shutil
import subprocess

import pytest
from helpers import tiny_backbone, tiny_drafter
from PIL import Image

from tiger.backbones.base import Prompt
from tiger.backbones.grids import Grid
from tiger.decoding.records import Generation, Round
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.evaluation.prompts import load_prompts
from tiger.report.trace_page import Trace, grids_of, trace_data, write_trace_page

HOSTILE = '</script><script>alert("x")</script> <b>&amp;'
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
# Walks through the page as a reader would and leaves what it saw in the document.
PROBE = """<script>
const seen = {errors: [], rounds: []};
window.addEventListener("error", (event) => seen.errors.push(event.message));
window.addEventListener("DOMContentLoaded", () => {
  const look = () => seen.rounds.push({
    position: document.getElementById("position").textContent,
    cells: document.querySelectorAll("svg .cell").length,
    kept: document.querySelector("#text .now").textContent,
    drafted: document.querySelectorAll("#draft .token:not(.bonus)").length,
  });
  look();
  const slider = document.getElementById("round");
  slider.value = 2;
  slider.dispatchEvent(new Event("input"));
  look();
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
  look();
  seen.wide = document.documentElement.scrollWidth > window.innerWidth;
  seen.bold = document.querySelectorAll("b").length - document.querySelectorAll("#phases b").length;
  document.documentElement.dataset.seen = JSON.stringify(seen);
});
</script>"""


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
    for entry, trace in zip(data, traces, strict=True):
        generation = trace.generation
        assert "".join(entry["tokens"]).startswith(generation.text.rstrip("\ufffd"))
        assert [r["accepted"] for r in entry["rounds"]] == [r.accepted for r in generation.rounds]
        assert entry["rounds"][0]["start"] == 1
        assert [(i["rows"], i["columns"]) for i in entry["images"]] == [(8, 8)]
        assert entry["images"][0]["uri"].startswith("data:image/png;base64,")
        for shown, record in zip(entry["rounds"], generation.rounds, strict=True):
            rows = [8 * cell["row"] + cell["column"] for cell in shown["cells"]]
            assert rows == [row for row in record.route if row < 64]
            assert (shown["pooled"] is not None) == (64 in record.route)
            assert len(shown["drafted"]) == 4


def test_page_is_self_contained_and_safe(traces, verifier, tmp_path):
    write_trace_page(tmp_path / "page.html", traces, verifier.tokenizer, title=HOSTILE)
    page = (tmp_path / "page.html").read_text()
    assert set(re.findall(r"https?://[^\"'\s)]+", page)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, never fetched
    assert not re.search(r"<(script|link|img)[^>]*\b(src|href)=\"(?!data:)", page)
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


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; install one to try the page in a browser")
@pytest.mark.parametrize("width", [1200, 500])
def test_page_in_a_browser(traces, verifier, tmp_path, width):
    write_trace_page(tmp_path / "page.html", traces, verifier.tokenizer)
    probed = tmp_path / "probed.html"
    probed.write_text((tmp_path / "page.html").read_text().replace("<head>", "<head>" + PROBE))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    command += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--hide-scrollbars"]
    done = subprocess.run(
        [*command, "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    document = re.search(r'data-seen="(.*?)"', done.stdout)[1]
    seen = json.loads(
        document.replace("&quot;", '"').replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    )
    rounds = traces[0].generation.rounds
    assert seen["errors"] == []
    assert seen["bold"] == 0
    assert not seen["wide"]
    assert [r["position"] for r in seen["rounds"][:2]] == [f"Round {n} of {len(rounds)}" for n in (1, 2)]
    assert seen["rounds"][2]["position"] > seen["rounds"][1]["position"]
    assert [r["cells"] for r in seen["rounds"][:2]] == [sum(row < 64 for row in r.route) for r in rounds[:2]]
    assert {r["drafted"] for r in seen["rounds"]} == {4}
