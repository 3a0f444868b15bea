"""The report in a real browser: no errors, nothing wider than the window, tables sort."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
from test_report import example_results

from analysis import report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")

PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement;
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const head = document.querySelector("table.sortable thead th:nth-child(2) button");
  const column = () => [...head.closest("table").querySelectorAll("tbody tr")]
    .map(row => Number(row.cells[1].dataset.sort ?? row.cells[1].innerText));
  head.click();
  const once = column();
  head.click();
  const wide = [...document.querySelectorAll("body *")]
    .filter(e => !e.closest("svg, .scroll, pre, table"))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.tagName + "." + e.className);
  const said = {
    width: innerWidth, scroll: root.scrollWidth, wide: wide.slice(0, 5), once, twice: column(),
    colour: getComputedStyle(document.body).backgroundColor,
    errors: window.problems,
  };
  root.dataset.said = JSON.stringify(said);
});
</script>
"""
CATCH = """
<script>window.problems = []; addEventListener("error", e => problems.push(e.message));</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    return report.build(path, example_results(), command="actstore report").read_text("utf-8")


def looked_at(html: str, folder: Path, width: int, *options: str) -> tuple[dict, str]:
    """What the probe said inside a frame of that width, and what the browser printed."""
    import json

    probed = html.replace("<head>", "<head>" + CATCH, 1).replace("</body>", PROBE + "</body>", 1)
    assert probed.count("<script>") == html.count("<script>") + 2
    outer = folder / "outer.html"
    outer.write_text(
        "<!doctype html><title>frame</title>"
        f'<iframe id="f" width="{width}" height="900" style="border:0" srcdoc="{escape(probed)}">'
        "</iframe><script>document.getElementById('f').onload = e => { document.title = "
        "e.target.contentDocument.documentElement.dataset.said; };</script>",
        "utf-8",
    )
    done = subprocess.run(
        [
            str(BROWSER),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", *options),
            *("--virtual-time-budget=5000", "--dump-dom", outer.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, re.S)
    assert title, done.stdout[:500] + done.stderr[-500:]
    return json.loads(title[1].replace("&amp;", "&")), done.stderr


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_and_its_tables_sort(page: str, tmp_path: Path, width: int) -> None:
    said, printed = looked_at(page, tmp_path, width)
    assert said["errors"] == []
    assert "CONSOLE" not in printed
    assert said["width"] == width
    assert said["scroll"] <= width
    assert said["wide"] == []
    assert len(said["once"]) > 1
    assert said["once"] == sorted(said["once"])
    assert said["twice"] == said["once"][::-1]


def test_the_page_is_dark_where_the_reader_is(page: str, tmp_path: Path) -> None:
    light, _ = looked_at(page, tmp_path, 800)
    dark, _ = looked_at(page, tmp_path, 800, "--blink-settings=preferredColorScheme=0")

    def brightness(colour: str) -> int:
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light["colour"]) > 600
    assert brightness(dark["colour"]) < 150


def test_an_error_on_the_page_would_be_seen(page: str, tmp_path: Path) -> None:
    broken = page.replace("</body>", "<script>nowhere.to_be_found();</script></body>")
    said, printed = looked_at(broken, tmp_path, 800)
    assert said["errors"]
    assert "CONSOLE" in printed
