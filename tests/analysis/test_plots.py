"""Figures show what the data say, keep global settings alone, and stand inside a page."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
import xarray as xr
from analysis_fakes import tiny

from actstore.errors import AnalysisError
from analysis import plots, prediction, results


def example_r2() -> xr.Dataset:
    values = np.array([[[0.9, 1.5], [np.nan, 0.5]], [[-7.0, 0.25], [np.nan, 0.75]]])
    dataset = xr.Dataset(
        {"r2": (("shortcut", "source", "target"), values)},
        coords={"shortcut": ["mat", "id"], "source": [0, 1], "target": [1, 2]},
    )
    return results.label(dataset, "r2", "tiny on text", {})


def test_heat_maps_clip_the_picture_not_the_data() -> None:
    dataset = example_r2()
    figure = plots.r2_heat_maps(dataset)
    mat, identity = (axis for axis in figure.axes if axis.images)
    assert mat.get_title() == "mat (fitted map)"
    shown = identity.images[0].get_array()
    assert shown[0].tolist() == [0, 0.25]
    assert shown.mask.tolist() == [[False, False], [True, False]]
    assert mat.images[0].get_clim() == (0, 1)
    assert float(dataset.r2.min()) == -7
    with pytest.raises(AnalysisError, match="shortcut 'affine'"):
        plots.r2_heat_maps(dataset, ["affine"])


def test_precision_draws_values_and_bands() -> None:
    run, maps, model = tiny()
    dataset = prediction.curves(run, maps, model, progress=False)
    figure = plots.precision(dataset)
    assert [axis.get_title() for axis in figure.axes] == [f"Precision@{k}" for k in (1, 5, 10)]
    mat, identity = figure.axes[1].lines
    np.testing.assert_array_equal(mat.get_xdata(), dataset.layer)
    np.testing.assert_allclose(mat.get_ydata(), dataset.precision.sel(shortcut="mat", k=5))
    np.testing.assert_allclose(identity.get_ydata(), dataset.precision.sel(shortcut="id", k=5))
    corners = figure.axes[1].collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx(
        dataset.precision_high.sel(shortcut="mat", k=5).max()
    )
    with pytest.raises(AnalysisError, match=r"k=\[2\] asked for"):
        plots.precision(dataset, ks=[2])


def test_several_results_share_relative_depth() -> None:
    few, many = tiny(layers=2), tiny(layers=6)
    datasets = {
        name: prediction.curves(run, maps, model, progress=False)
        for name, (run, maps, model) in (("few", few), ("many", many))
    }
    figure = plots.surprisal(datasets)
    (axis,) = figure.axes
    assert [line.get_xdata()[-1] for line in axis.lines] == [1, 1, 1, 1]
    assert len({line.get_color() for line in axis.lines}) == 2
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["few, mat", "few, id", "many, mat", "many, id"]
    assert plots.surprisal(datasets, across="layer").axes[0].lines[-1].get_xdata()[-1] == 6
    with pytest.raises(AnalysisError, match="no results were passed"):
        plots.precision({})


class Svg(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and not (value or "").startswith("data:"):
                self.references.append((value or "")[1:])
            if name == "clip-path":
                self.references.append((value or "")[5:-1])


@pytest.mark.parametrize("kind", ["lines", "heat map"])
def test_inline_svg_is_whole_and_repeatable(kind: str) -> None:
    run, maps, model = tiny()
    curves = prediction.curves(run, maps, model, progress=False)

    def draw() -> str:
        lines = kind == "lines"
        figure = plots.precision(curves) if lines else plots.r2_heat_maps(example_r2())
        return plots.inline_svg(figure, "f7")

    svg = draw()
    parser = Svg()
    parser.feed(svg)
    assert len(set(parser.ids)) == len(parser.ids)
    assert all(name.startswith("f7-") for name in parser.ids)
    assert set(parser.references) <= set(parser.ids)
    assert "http" not in svg
    assert "currentColor" in svg
    assert svg == draw()
    assert len(svg) < 60_000


def test_small_tick_labels_survive_the_shortening_of_coordinates() -> None:
    figure = plots.surprisal(example_curves_of_thousandths())
    figure.axes[0].set_yticks([0.0005, 0.125])
    svg = plots.inline_svg(figure, "f")
    assert "0.0005" in svg
    assert "0.1250" in svg


def example_curves_of_thousandths() -> xr.Dataset:
    coordinates = {"shortcut": ["mat"], "layer": [0, 1]}
    values = (("shortcut", "layer"), np.array([[0.001, 0.002]]))
    return xr.Dataset(
        dict.fromkeys(("surprisal", "surprisal_low", "surprisal_high"), values), coordinates
    )


def test_global_settings_are_left_alone() -> None:
    before = dict(matplotlib.rcParams)
    plots.r2_heat_maps(example_r2())
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("missing", "module"), [("matplotlib", "analysis.plots"), ("jinja2", "analysis.report")]
)
def test_a_missing_extra_is_named(missing: str, module: str) -> None:
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "import analysis.prediction, analysis.results\n"
        f"try:\n    import {module}\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingDependencyError")
    assert "pip install 'actstore[plots]'" in done.stdout
