"""Opens pages in headless Chromium and reports what was there."""

import html
import json
import re
import shutil
import subprocess

import pytest

HOSTILE = '</script><script>alert("x")</script> <b>&amp;'
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; install one to try the pages")
# Runs before the page's own scripts, and leaves what it saw in the document.
PROBE = """<script>
const seen = {errors: []};
window.addEventListener("error", (event) => seen.errors.push(event.message));
window.addEventListener("DOMContentLoaded", () => {
  %s
  seen.wide = document.documentElement.scrollWidth > window.innerWidth;
  seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith("data:"));
  document.documentElement.dataset.seen = JSON.stringify(seen);
});
</script>"""


def visit(page, folder, width, script=""):
    """What a script saw on a page, after checking that nothing went wrong there.

    Args:
        page: The HTML file.
        folder: Where Chromium may write.
        width: Of the window, pixels.
        script: JavaScript that fills the object `seen`.
    """
    probed = page.with_name("probed_" + page.name)
    probed.write_text(page.read_text().replace("<head>", "<head>" + PROBE % script))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    command += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--hide-scrollbars"]
    done = subprocess.run(
        [*command, "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=120
    )
    probed.unlink()
    assert "CONSOLE" not in done.stderr, done.stderr
    seen = json.loads(html.unescape(re.search(r'data-seen="(.*?)"', done.stdout)[1]))
    assert seen.pop("errors") == []
    assert seen.pop("requests") == []
    assert not seen.pop("wide"), "the page scrolls sideways"
    return seen


def assert_self_contained(page):
    """Checks that the text of a page names nothing that a browser would fetch."""
    assert set(re.findall(r"https?://[^\"'\s)]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }  # names, never fetched
    assert not re.search(r"<(script|link|img|iframe|source|use)[^>]*\b(src|href)=\"(?!data:|#)", page)
    assert not re.search(r"@import|url\((?!#|data:)", page)
