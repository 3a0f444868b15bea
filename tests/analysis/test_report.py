"""The report is one valid page that needs nothing else, and lets no token out of its quotes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from analysis_fakes import FakeTokenizer, tiny

from actstore.errors import AnalysisError
from analysis import prediction, report, results

EVIL = "</script><script>alert(1)</script><img src=http://evil.example>&\u202e\x1b[31m"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Checks nesting, gathers tags and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


class EvilTokenizer(FakeTokenizer):
    def decode(self, ids: Any, **_: Any) -> str:
        return EVIL


def example_results() -> dict[str, xr.Dataset]:
    run, maps, model = tiny()
    model.tokenizer = EvilTokenizer()
    values = np.array([[[0.9, 0.8], [np.nan, 0.7]], [[0.4, -3.0], [np.nan, 0.5]]])
    r2 = xr.Dataset(
        {"r2": (("shortcut", "source", "target"), values)},
        coords={"shortcut": ["mat", "id"], "source": [0, 1], "target": [1, 2]},
    )
    return {
        "curves": prediction.curves(run, maps, model, progress=False),
        "peek": prediction.peek(run, maps, model, [0, 5]),
        "r2": results.label(r2, "r2", "tiny on text", {"maps": {"n": 9000}}),
    }


@pytest.fixture(scope="module")
def datasets() -> dict[str, xr.Dataset]:
    return example_results()


def test_the_page_is_self_contained_and_well_formed(
    tmp_path: Path, datasets: dict[str, xr.Dataset]
) -> None:
    path = report.build(tmp_path / "out" / "r.html", datasets, command="actstore report <a>")
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name) or ""
            assert not value.startswith(("http", "//")), (tag, value)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert "@import" not in html
    assert "url(http" not in html
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert EVIL not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "alert(1)" in page.text
    assert "mat is the map fitted on 9,000 samples, id takes" in page.text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(attributes.get("href") or "")[1:] for tag, attributes in page.tags if tag == "a"}
    assert targets <= set(ids)
    assert page.count("svg") == 2 + 4
    assert page.count("figcaption") == page.count("figure") == 2
    assert page.count("details") == 1 + 2 + 3 + 1
    assert "actstore report <a>" in page.text
    assert list(path.parent.iterdir()) == [path]
    assert len(html) < 300_000


def test_every_number_of_the_curves_is_in_the_table(
    tmp_path: Path, datasets: dict[str, xr.Dataset]
) -> None:
    page = Page(report.build(tmp_path / "r.html", [datasets["curves"]]).read_text())
    curves = datasets["curves"]
    for layer in curves.layer.values:
        at = curves.sel(layer=layer, shortcut="mat", k=5)
        low, high = 100 * float(at.precision_low), 100 * float(at.precision_high)
        assert f"{100 * float(at.precision):.1f} [{low:.1f}, {high:.1f}]" in page.text
    sorts = [attributes["data-sort"] for tag, attributes in page.tags if "data-sort" in attributes]
    assert len(sorts) == 4 * (1 + 6 + 2)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    page = Page(report.build(tmp_path / "r.html", []).read_text())
    assert page.count("svg") == 0
    for call in ("r2.heat_maps", "prediction.curves", "prediction.peek"):
        assert f"analysis.{call}(" in page.text


def test_results_come_from_a_folder_and_a_store_is_listed(
    tmp_path: Path, datasets: dict[str, xr.Dataset]
) -> None:
    for name, dataset in datasets.items():
        results.save(dataset, tmp_path / "results" / f"{name}.zarr")

    class FakeStore:
        def table(self) -> list[dict[str, str]]:
            return [{"model": "tiny", "corpus": "<text>", "samples": "37"}]

    one = report.build(tmp_path / "1.html", tmp_path / "results", store=FakeStore())  # type: ignore[arg-type]
    two = report.build(tmp_path / "2.html", tmp_path / "results", store=FakeStore())  # type: ignore[arg-type]
    assert one.read_bytes() == two.read_bytes()
    page = Page(one.read_text())
    assert "Runs in the store" in page.text
    assert "<text>" in page.text
    record = results.read_provenance(datasets["curves"])
    assert json.dumps(record, indent=2, ensure_ascii=False) in page.text


def test_several_evaluations_are_drawn_together(
    tmp_path: Path, datasets: dict[str, xr.Dataset]
) -> None:
    other = datasets["curves"].assign_attrs(title="tiny on news")
    page = Page(report.build(tmp_path / "r.html", [datasets["curves"], other]).read_text())
    assert page.count("svg") == 4 + 4 + 2
    assert "All evaluations together" in page.text


def test_findings_state_the_numbers(datasets: dict[str, xr.Dataset]) -> None:
    said = report.findings(datasets)
    assert said[0] == (
        "tiny on text: mean r² over all pairs, mat 0.800 (median 0.800), id -0.700 (median 0.400)."
    )
    curves = datasets["curves"].sel(k=1)
    best = curves.isel(layer=int(curves.precision_gain.argmax("layer")))
    assert f"most at layer {int(best.layer)}, by {100 * float(best.precision_gain):.1f}" in said[2]
    assert said[3].startswith("tiny on text: over the 2 samples shown")


def test_a_result_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="kind None has no section"):
        report.build(tmp_path / "r.html", [xr.Dataset()])
    assert list(tmp_path.iterdir()) == []


def test_a_section_of_ones_own(tmp_path: Path) -> None:
    table = report.Table(
        ["name", "x"], [["a<b", 0.123456], ["c", report.Cell("many", 1e9)]], "A & B"
    )
    section = report.Section("Mine", [table], text="As I like it.")
    page = Page(report.write(tmp_path / "r.html", [section], title="T<itle").read_text())
    assert "a<b" in page.text
    assert "0.1235" in page.text
    assert "T<itle" in page.text
