"""Figures and sections of linearity, influence and probes show the numbers they were given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from stored_runs import stored_run, stream

import actstore
from actstore.errors import AnalysisError
from analysis import (
    checkpoints,
    influence,
    linearity,
    plots,
    probing,
    report,
    results,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, xr.Dataset]:
    folder = tmp_path_factory.mktemp("s") / "s.zarr"
    texts = np.array([" the", "ing", ",", "7"] * 30, object)
    genres = np.array(["press", "fiction"], object)[np.arange(120) // 3 % 2]
    runs = {
        name: stored_run(
            folder, stream(120, 5, 3, noise=noise), {"token": texts, "genre": genres}, model=name
        )
        for name, noise in (("base", 0.1), ("tuned", 0.5))
    }
    run: actstore.Run = runs["base"]
    rest, judge = run.split(0.3)
    return {
        "linearity": linearity.scores(rest, held_out=judge, progress=False),
        "pairs": linearity.scores(run, pairs="all", progress=False),
        "errors": linearity.errors(run, resamples=20, progress=False),
        "checkpoints": checkpoints.compare(runs, progress=False),
        "influence": influence.block_influence(run, first_token="drop", progress=False),
        "angles": influence.angular_distance(run, progress=False),
        "probing": probing.accuracy(run, "genre", progress=False),
    }


def test_lines_show_the_scores(found: Mapping[str, xr.Dataset]) -> None:
    figure = plots.linearity(found["linearity"])
    left, right = figure.axes
    shown = {line.get_label(): line.get_ydata() for line in left.lines}
    np.testing.assert_array_equal(shown["with the residual"], found["linearity"].score)
    np.testing.assert_array_equal(
        shown["without the residual"], found["linearity"].score_no_residual
    )
    np.testing.assert_array_equal(
        shown["with it, held out"], found["linearity"].held_out.clip(min=0)
    )
    np.testing.assert_array_equal(right.lines[0].get_ydata(), found["linearity"].output_over_stream)
    heat = plots.linearity(found["pairs"])
    shown_table = heat.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown_table.filled(np.nan), found["pairs"].score)


def test_errors_checkpoints_influence_and_probes_are_drawn(found: Mapping[str, xr.Dataset]) -> None:
    errors = found["errors"]
    figure = plots.linearity_errors(errors, ["all", "number"])
    median = errors.error.sel(quantile=0.5)
    for line, name in zip(figure.axes[0].lines, ("all", "number"), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), median.sel({"class": name}))
    compared = plots.checkpoints(found["checkpoints"])
    assert [len(axis.lines) for axis in compared.axes] == [2, 2]
    np.testing.assert_array_equal(
        compared.axes[1].lines[0].get_ydata(),
        found["checkpoints"].score_change.sel(checkpoint="tuned"),
    )
    turned = plots.influence({"a": found["influence"], "b": found["influence"]})
    np.testing.assert_array_equal(turned.axes[0].lines[1].get_ydata(), found["influence"].influence)
    angles = plots.angular_distance(found["angles"]).axes[0].images[0].get_array()
    np.testing.assert_array_equal(angles.filled(np.nan), found["angles"].distance)
    probe = plots.probing(found["probing"])
    np.testing.assert_array_equal(probe.axes[0].lines[0].get_ydata(), found["probing"].accuracy)
    assert len(probe.axes[0].lines) == 3
    several = plots.probing({"a": found["probing"], "b": found["probing"]}, measure="macro_f1")
    np.testing.assert_array_equal(several.axes[0].lines[1].get_ydata(), found["probing"].macro_f1)


def test_results_of_another_kind_are_not_drawn(found: Mapping[str, xr.Dataset]) -> None:
    for draw in (
        plots.linearity,
        plots.linearity_errors,
        plots.checkpoints,
        plots.influence,
        plots.angular_distance,
        plots.probing,
    ):
        with pytest.raises(AnalysisError, match="kind 'r2' given"):
            draw(xr.Dataset(attrs={"kind": "r2"}))
    with pytest.raises(AnalysisError, match="class 'verb' asked for"):
        plots.linearity_errors(found["errors"], ["verb"])
    with pytest.raises(AnalysisError, match="measure='f2'"):
        plots.probing(found["probing"], measure="f2")
    for draw in (plots.influence, plots.probing):
        with pytest.raises(AnalysisError, match="no results"):
            draw({})


def test_one_page_of_everything(found: Mapping[str, xr.Dataset], tmp_path: Path) -> None:
    for name, dataset in found.items():
        path = results.save(dataset, tmp_path / "results" / f"{name}.zarr")
        xr.testing.assert_identical(results.load(path), results._plain_strings(dataset))
    page = report.build(tmp_path / "r.html", tmp_path / "results").read_text()
    for heading in (
        "Is the step from layer to layer linear?",
        "Which tokens are not linear?",
        "Linearity over checkpoints",
        "How much does each block turn the stream?",
        "Angular distance over several blocks",
        "What do linear probes read off the layers?",
    ):
        assert heading in page
    assert "No linearity scores here" not in page
    said = report.findings(found)
    mean = float(found["linearity"].score.mean())
    assert any(f"mean {mean:.4f}; without the residual" in sentence for sentence in said)
    change = float(found["checkpoints"].mean_score_change.sel(checkpoint="tuned"))
    assert any(f"score changes by {change:+.4f} [" in sentence for sentence in said)
    assert any("least influence goes from layer" in sentence for sentence in said)
    assert any("2 classes are told apart best" in sentence for sentence in said)
