"""`make docs` builds a site without warnings that loads nothing from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import PAGES

ROOT = Path(__file__).resolve().parents[2]


def test_links_lead_to_files():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s#]+)", page.read_text())]
    assert [link for page, link in links if ":" not in link and not (page.parent / link).exists()] == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert [page.name for page in PAGES[1:] if f": {page.name}\n" not in navigation] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (rule,) = re.findall(r"-m (mkdocs build .*)", (ROOT / "Makefile").read_text())
    words = [sys.executable, "-m", *rule.split(), "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_pages_load_nothing_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\s\">]+)|<link[^>]*stylesheet[^>]*http"
    )
    assert [(page.name, found) for page in pages if (found := loads.search(page.read_text()))] == []


@pytest.mark.slow
def test_the_reference_has_every_verb_and_option(site):
    from tiger.cli import DATA, VERBS

    verbs, options = ((site / "reference" / f"{name}.html").read_text() for name in ("verbs", "options"))
    assert all(f">{verb}<" in verbs for verb in VERBS if verb != "data")
    assert all(f">data {name}<" in verbs for name in DATA)
    assert "usage: python -m tiger benchmark" in verbs
    for option in ("group_size", "teacher_cache", "list_mle_weight", "prompt_template", "data_parallel_size"):
        assert f"<code>{option}</code>" in options


@pytest.mark.slow
def test_linked_files_are_in_the_site(site):
    assert "accept_tree_sampled" in (site / "source/tiger/decoding/acceptance.py.html").read_text()
    assert 'href="source/tiger/decoding/speculative.py.html"' in (site / "index.html").read_text()
