"""The report in a real browser: no errors, nothing wider than the window, tables sort."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import looked_at, needs_browser
from test_report import example_results

from analysis import report

pytestmark = needs_browser

PROBE = """
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
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    return report.build(path, example_results(), command="actstore report").read_text("utf-8")


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_and_its_tables_sort(page: str, tmp_path: Path, width: int) -> None:
    said, printed = looked_at(page, PROBE, tmp_path, width)
    assert said["errors"] == []
    assert "CONSOLE" not in printed
    assert said["width"] == width
    assert said["scroll"] <= width
    assert said["wide"] == []
    assert len(said["once"]) > 1
    assert said["once"] == sorted(said["once"])
    assert said["twice"] == said["once"][::-1]


def test_the_page_is_dark_where_the_reader_is(page: str, tmp_path: Path) -> None:
    light, _ = looked_at(page, PROBE, tmp_path, 800)
    dark, _ = looked_at(page, PROBE, tmp_path, 800, "--blink-settings=preferredColorScheme=0")

    def brightness(colour: str) -> int:
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light["colour"]) > 600
    assert brightness(dark["colour"]) < 150


def test_an_error_on_the_page_would_be_seen(page: str, tmp_path: Path) -> None:
    broken = page.replace("</body>", "<script>nowhere.to_be_found();</script></body>")
    said, printed = looked_at(broken, PROBE, tmp_path, 800)
    assert said["errors"]
    assert "CONSOLE" in printed
