"""The sheet in a real browser: judged by buttons and keys, saved, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_fakes import tiny
from browser import looked_at, needs_browser

from analysis import annotation, prediction

pytestmark = needs_browser

PROBE = """
addEventListener("load", async () => {
  const saved = {};
  URL.createObjectURL = blob => { saved.blob = blob; return "#"; };
  HTMLAnchorElement.prototype.click = function () { saved.name = this.download; };
  const press = key => dispatchEvent(new KeyboardEvent("keydown", { key }));
  const first = document.getElementById("context").textContent;
  document.getElementById("yes").click();
  press("n");
  press("y"); press("ArrowLeft"); press("c");
  const state = document.getElementById("state").textContent;
  document.getElementById("csv").click();
  const csv = [saved.name, await saved.blob.text()];
  document.getElementById("json").click();
  const json = [saved.name, await saved.blob.text()];
  document.documentElement.dataset.said = JSON.stringify({
    first, state, csv, json, errors: window.problems,
    scroll: document.documentElement.scrollWidth, width: innerWidth,
  });
});
"""


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run, maps, model = tiny()
    peeked = prediction.peek(run, maps, model, [0, 5])
    return annotation.export(peeked, tmp_path_factory.mktemp("sheet"))


@pytest.mark.parametrize("width", [360, 1200])
def test_answers_given_in_the_page_come_back(sheet: Any, tmp_path: Path, width: int) -> None:
    said, printed = looked_at(sheet.page.read_text("utf-8"), PROBE, tmp_path, width)
    assert said["errors"] == []
    assert "CONSOLE" not in printed
    assert said["scroll"] <= said["width"] == width
    assert ": " not in said["first"].split()[0]
    assert said["state"].endswith("2 judged")
    for (name, text), expected in ((said["csv"], "answers.csv"), (said["json"], "answers.json")):
        assert name == expected
        (tmp_path / name).write_text(text, "utf-8", newline="")
        read = annotation.read(sheet.key, {"ann": tmp_path / name})
        judged = read.plausible.sel(annotator="ann").values
        np.testing.assert_array_equal(judged[:3], [1, 0, np.nan])
        assert np.isnan(judged[3:]).all()
