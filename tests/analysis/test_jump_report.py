"""Every topic of "Jump to Conclusions" has its figure, its section and its sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import actstore
from actstore.errors import AnalysisError
from analysis import (
    alternation,
    annotation,
    early_exit,
    plots,
    prediction,
    r2,
    report,
    results,
    submodules,
    transfer,
)


@pytest.fixture(scope="module")
def found(case: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, xr.Dataset]:
    at = case("llama")
    run, maps, model = at.held_out, at.maps, at.model
    table = r2.heat_maps(maps, run, progress=False)
    parts = submodules.fit(at.run, progress=False)
    schedules = alternation.paper_schedules(table.r2.sel(shortcut="mat"), 4, draws=1)
    peeked = prediction.peek(run, maps, model, [0, 1])
    folder = tmp_path_factory.mktemp("sheet")
    sheet = annotation.export(peeked, folder)
    key = json.loads(sheet.key.read_text())["instances"]
    said = {}
    for name, odd in (("ann", 2), ("bob", 3)):
        answers = {str(entry[0]): int(entry[0] % odd == 0) for entry in key}
        said[name] = folder / f"{name}.json"
        said[name].write_text(json.dumps({"answers": answers}))
    corpora = {"train": maps, "held out": actstore.fit(run, ridge=1e-2)}
    runs = {"train": at.run, "held out": run}
    return {
        "r2": table,
        "prediction": prediction.curves(run, maps, model, progress=False),
        "early_exit": early_exit.sweep(run, maps, model, resamples=30, progress=False),
        "generation": early_exit.measure(model, [[9, 8], [7]], maps, max_new_tokens=3),
        "submodules": submodules.curves(run, parts, model, maps=maps, progress=False),
        "alternation": alternation.curves(
            run, maps, model, schedules, r2=table.r2.sel(shortcut="mat"), progress=False
        ),
        "transfer": transfer.predictions(corpora, runs, model, progress=False),
        "transfer_r2": transfer.r2(corpora, runs, resamples=20),
        "annotation": annotation.rates(annotation.read(folder, said)),
        "peek": peeked,
    }


def test_the_report_shows_all_of_them(found: dict[str, xr.Dataset], tmp_path: Path) -> None:
    for kind, dataset in found.items():
        assert dataset.attrs["kind"] == kind
        path = results.save(dataset, tmp_path / "results" / f"{kind}.zarr")
        assert set(results.load(path)) == set(dataset)
    page = report.build(tmp_path / "r.html", tmp_path / "results").read_text()
    shown = re.findall("<h2[^>]*>(.*?)</h2>", page)
    assert len(shown) == len(found) + 2  # what is absent, and the provenance
    assert page.count("<svg") == 2 + 4 + 1 + 2 + 1 + 1 + 1 + 1
    for words in (
        "How many blocks does a prediction need?",
        "Generating with early exits",
        "Which part of a block is most linear?",
        "Running some blocks and jumping over others",
        "Do maps of one corpus serve another?",
        "Are the decoded tokens plausible?",
        "Krippendorff",
        "one jump to the end",
        "r² informed",
    ):
        assert words in page
    said = report.findings(found)
    saved = found["early_exit"].saved.sel(policy="dynamic", shortcut="mat", level=0.95)
    assert any(f"mat {float(saved):.2f} [" in line for line in said)
    cost = found["transfer"].cost.sel(fitted_on="train", evaluated_on="held out", k=1)
    assert any(f"lose {100 * float(cost):.1f} points" in line for line in said)
    rate = 100 * float(found["annotation"].rate.sel(shortcut="mat"))
    assert any(f"judged plausible, mat {rate:.1f}%" in line for line in said)


def test_early_exit_draws_what_was_swept(found: dict[str, xr.Dataset]) -> None:
    dataset = found["early_exit"]
    mat, identity = plots.early_exit(dataset).axes
    fixed, dynamic = mat.lines[:2]
    np.testing.assert_allclose(fixed.get_ydata(), dataset.fixed_precision.sel(shortcut="mat"))
    assert len(dynamic.get_xdata()) == 13
    assert len(identity.lines[1].get_xdata()) == 22


def test_alternation_draws_a_point_for_each_schedule(found: dict[str, xr.Dataset]) -> None:
    dataset = found["alternation"]
    (axis,) = plots.alternation(dataset).axes
    points = sum(len(container.lines[0].get_xdata()) for container in axis.containers)
    assert points == dataset.sizes["schedule"]
    with pytest.raises(AnalysisError, match="k=2 asked for"):
        plots.alternation(dataset, k=2)


def test_transfer_draws_a_panel_for_each_corpus(found: dict[str, xr.Dataset]) -> None:
    for kind, name in (("transfer", "precision"), ("transfer_r2", "r2")):
        dataset = found[kind]
        figure = plots.transfer(dataset)
        assert [a.get_title() for a in figure.axes] == [
            "evaluated on train",
            "evaluated on held out",
        ]
        expected = dataset[name].sel(fitted_on="held out", evaluated_on="train")
        expected = expected.sel(k=1) if kind == "transfer" else expected.clip(min=0)
        np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), expected)
    with pytest.raises(AnalysisError, match="kind 'r2'"):
        plots.transfer(found["r2"])


def test_submodules_share_the_curves_figure(found: dict[str, xr.Dataset]) -> None:
    (axis,) = plots.precision(found["submodules"], ks=[1]).axes
    assert [line.get_label() for line in axis.lines] == [
        "mat (fitted map)",
        "id (no map)",
        "attention linear",
        "feed-forward linear",
        "norms linear",
    ]


def test_plausibility_draws_rates(found: dict[str, xr.Dataset]) -> None:
    dataset = found["annotation"]
    (axis,) = plots.plausibility(dataset).axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), dataset.layer_rate.sel(shortcut="mat"))
