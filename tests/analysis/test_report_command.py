"""``actstore report`` on a store of two corpora: all that store, maps and model allow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import actstore
from actstore.cli import main
from analysis import alternation, results

TEXT = [f"the cat number {n} sat on the mat and looked at dog {n * 7}." for n in range(40)]


def test_transfer_early_exit_and_saved_results_are_in_the_report(
    tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = tmp_path / "tiny-gpt2", tmp_path / "s.zarr"
    tiny_gpt2.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    model = actstore.load_model(folder)
    for name, texts in (("cats", TEXT), ("dogs", [text.replace("cat", "dog") for text in TEXT])):
        run = actstore.extract(model, texts, store, corpus_name=name, progress=False)
    schedules = alternation.exits(3, [1])
    results.save(
        alternation.curves(run, actstore.fit(run), model, schedules, progress=False),
        tmp_path / "results" / "alternation.zarr",
    )
    page = tmp_path / "r.html"
    arguments = ["report", store, "tiny-gpt2/cats", "--model", folder, "--holdout", 0.3]
    arguments += ["--results", tmp_path / "results", "-o", page, "--quiet"]
    assert main([str(argument) for argument in arguments]) == 0
    said = capsys.readouterr().out
    assert "blocks of 3 saved by dynamic exit at 95%" in said
    assert "on dogs, maps fitted on cats lose" in said
    html = page.read_text()
    assert "fitted on dogs" in html
    assert "one jump to the end" in html
    absent = set(re.findall("<dt>(.*?)</dt>", html))
    assert "Generating with early exits" in absent
    assert "Which part of a block is most linear?" in absent
    assert not absent & set(re.findall("<h2[^>]*>(.*?)</h2>", html))
    arguments[arguments.index("--results") + 1] = tmp_path / "absent"
    assert main([str(argument) for argument in arguments]) == 2
    assert "no folder of results at" in capsys.readouterr().err
