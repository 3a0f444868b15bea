"""Linearity scores, their errors, checkpoints, and how far blocks turn the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.style import COLOURS, INK, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORES = {
    "score": "with the residual",
    "held_out": "with it, held out",
    "score_no_residual": "without the residual",
    "held_out_no_residual": "without it, held out",
    "orthogonal": "rotations only",
}
USUAL = ("all", "first token", "punctuation", "number", "word start", "continuation")
_LINES = ("-", "--", "-.", ":", (0, (4, 1, 1, 1, 1, 1)))


def linearity(dataset: xr.Dataset) -> Figure:
    """Linearity scores by layer, and what a block adds in proportion to its input.

    Scores of pairs that are not adjacent are drawn as heat maps. All are cut off at 0.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.linearity.scores` returned.
    """
    require(dataset, "linearity", "analysis.linearity.scores")
    if "target" in dataset.dims:
        return _tables(dataset)
    with style():
        figure, axes = panels(2, 4.2, 3.3)
        for number, name in enumerate(name for name in SCORES if name in dataset):
            line(axes[0], dataset.source, dataset, name, number, SCORES[name], floor=0.0)
        axes[0].set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("linearity score")
        line(axes[1], dataset.source, dataset, "output_over_stream", 0, None)
        axes[1].set_ylabel("‖output‖ / ‖stream‖")
        axes[1].set_yscale("log")
        for axis in axes:
            from_layer(axis)
        legend_below(figure, axes[0])
    return figure


def linearity_errors(dataset: xr.Dataset, classes: Sequence[str] | None = None) -> Figure:
    """Median error of single tokens by layer, for each class, on a logarithmic axis.

    The band is the range of the outermost quantiles of all samples.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.linearity.errors` returned.
    classes : sequence of str, optional
        Default: all samples, first tokens and kinds of text as far as they are there, or the
        first six of other classes.
    """
    require(dataset, "linearity_errors", "analysis.linearity.errors")
    known = dataset["class"].values.tolist()
    usual = [name for name in USUAL if name in known]
    chosen = list(classes) if classes is not None else usual if len(usual) > 1 else known[:6]
    if missing := [name for name in chosen if name not in known]:
        raise AnalysisError(f"class {missing[0]!r} asked for, but there are {', '.join(known)}")
    levels = dataset["quantile"].values
    middle = float(levels[np.abs(levels - 0.5).argmin()])
    with style():
        figure, (axis,) = panels(1, 5.6, 3.4)
        across = dataset.source
        for number, name in enumerate(chosen):
            at = dataset.error.sel({"class": name, "quantile": middle})
            axis.plot(
                across,
                at.where(at > 0),
                color=COLOURS[number % len(COLOURS)],
                linestyle=_LINES[number % len(_LINES)],
                label=name,
            )
        ends = dataset.error.sel({"class": "all"}).sortby("quantile")
        low, high = (ends.isel({"quantile": k}) for k in (0, -1))
        axis.fill_between(across, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
        axis.set_yscale("log")
        axis.set_ylabel(
            "error / RMS of the layer" if dataset.attrs["normalise"] == "layer" else "error / own"
        )
        axis.set_title("median" if middle == 0.5 else f"quantile {middle:g}")
        from_layer(axis)
        legend_below(figure, axis, columns=3)
    return figure


def checkpoints(dataset: xr.Dataset, name: str = "score") -> Figure:
    """Scores of checkpoints by layer, and their changes against the base.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.checkpoints.compare` returned, of adjacent layers.
    name : str
        Which score: ``score``, ``score_no_residual``…
    """
    require(dataset, "checkpoints", "analysis.checkpoints.compare")
    if "target" in dataset.dims or name not in dataset:
        raise AnalysisError(
            f"{name!r} of adjacent layers asked for, but there are "
            f"{', '.join(map(str, dataset.data_vars))} over {', '.join(map(str, dataset.dims))}"
        )
    with style():
        figure, axes = panels(2, 4.2, 3.3)
        for number, checkpoint in enumerate(dataset.checkpoint.values.tolist()):
            at = dataset.sel(checkpoint=checkpoint)
            line(axes[0], dataset.source, at, name, number, checkpoint)
            if checkpoint != dataset.attrs["base"]:
                line(axes[1], dataset.source, at, f"{name}_change", number, None)
        axes[0].set_ylabel(SCORES.get(name, name))
        axes[1].set_ylabel(f"change against {dataset.attrs['base']}")
        axes[1].axhline(0, color=INK, linewidth=0.8)
        for axis in axes:
            from_layer(axis)
        legend_below(figure, axes[0], columns=3)
    return figure


def influence(results: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Block influence by layer.

    Parameters
    ----------
    results : xarray.Dataset, or mapping of label to Dataset
        What `analysis.influence.block_influence` returned.
    """
    datasets = {"": results} if isinstance(results, xr.Dataset) else dict(results)
    if not datasets:
        raise AnalysisError("nothing to draw: no results were passed")
    with style():
        figure, (axis,) = panels(1, 4.2, 3.2)
        for number, (label, dataset) in enumerate(datasets.items()):
            require(dataset, "influence", "analysis.influence.block_influence")
            line(axis, dataset.source, dataset, "influence", number, label or None)
        axis.set_yscale("log")
        axis.set_ylabel("1 − cos(input, output)")
        from_layer(axis)
        if len(datasets) > 1:
            legend_below(figure, axis)
    return figure


def angular_distance(dataset: xr.Dataset) -> Figure:
    """Angular distance as a heat map: from each layer (across), over each span (down).

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.influence.angular_distance` returned.
    """
    require(dataset, "angular_distance", "analysis.influence.angular_distance")
    with style():
        figure, (axis,) = panels(1, 4.4, 3.6)
        _heat_map(figure, axis, dataset.distance.values, dataset.source, dataset.span, None)
        axis.set_xlabel("from layer")
        axis.set_ylabel("over so many blocks")
        axis.set_title("angular distance")
    return figure


def line(
    axis: Axes,
    across: Any,
    dataset: xr.Dataset,
    name: str,
    number: int,
    label: str | None,
    *,
    floor: float | None = None,
) -> None:
    """A line with the band of its interval, in the colour and dashes of its number."""
    colour = COLOURS[number % len(COLOURS)]
    value, low, high = (dataset[name + end].clip(min=floor) for end in ("", "_low", "_high"))
    axis.plot(across, value, color=colour, linestyle=_LINES[number % len(_LINES)], label=label)
    axis.fill_between(across, low, high, color=colour, alpha=0.2, linewidth=0)


def from_layer(axis: Axes) -> None:
    """Whole layer numbers across."""
    axis.set_xlabel("from layer")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def require(dataset: xr.Dataset, kind: str, maker: str) -> None:
    """AnalysisError for a result of another kind."""
    if dataset.attrs.get("kind") != kind:
        raise AnalysisError(
            f"a result of kind {dataset.attrs.get('kind')!r} given; {maker} makes this one's"
        )


def _tables(dataset: xr.Dataset) -> Figure:
    names = [name for name in ("score", "held_out", "score_no_residual") if name in dataset]
    with style():
        figure, axes = panels(len(names), 4.0, 3.6)
        for axis, name in zip(axes, names, strict=True):
            values = dataset[name].clip(0, 1).values
            _heat_map(figure, axis, values, dataset.target, dataset.source, (0, 1))
            axis.set_title(SCORES[name])
            axis.set_xlabel("to layer")
        axes[0].set_ylabel("from layer")
    return figure


def _heat_map(
    figure: Figure,
    axis: Axes,
    values: np.ndarray,
    across: xr.DataArray,
    down: xr.DataArray,
    limits: tuple[float, float] | None,
) -> None:
    low, high = limits or (0, None)
    image = axis.imshow(
        np.ma.masked_invalid(values), cmap="viridis", vmin=low, vmax=high, aspect="auto"
    )
    axis.grid(False)
    for place, names in ((axis.xaxis, across), (axis.yaxis, down)):
        step = -(-len(names) // 8)
        place.set_ticks(range(0, len(names), step), [str(v) for v in names.values[::step]])
    figure.colorbar(image, ax=axis, shrink=0.9)
