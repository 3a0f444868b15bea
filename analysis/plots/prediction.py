"""Precision@k and surprisal by layer, with bands of their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.style import (
    COLOURS,
    INK,
    LINE_STYLES,
    NAMES,
    MaxNLocator,
    legend_below,
    panels,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Across = Literal["layer", "depth"]


def precision(
    results: xr.Dataset | Mapping[str, xr.Dataset],
    *,
    ks: Sequence[int] | None = None,
    across: Across | None = None,
) -> Figure:
    """Precision@k by layer, one panel for each k; bands are 95% intervals.

    Parameters
    ----------
    results : xarray.Dataset, or mapping of label to Dataset
        What `analysis.prediction.curves` returned; several are drawn together, told apart by
        colour, with their shortcuts told apart by line style.
    ks : sequence of int, optional
        Which k to draw; default: those that all results have.
    across : "layer" or "depth"
        Horizontal axis: the layer, or layer / number of blocks. Default: layers for one
        result, depth for several.
    """
    datasets = _labelled(results)
    shared = sorted(set.intersection(*(set(d.k.values.tolist()) for d in datasets.values())))
    chosen = shared if ks is None else list(ks)
    if not chosen or set(chosen) - set(shared):
        raise AnalysisError(f"k={chosen} asked for, but all results have only {shared}")
    with style():
        figure, axes = panels(len(chosen), 4.2, 3.2)
        for number, (axis, k) in enumerate(zip(axes, chosen, strict=True)):
            at_k = {label: dataset.sel(k=k) for label, dataset in datasets.items()}
            _curves(axis, at_k, "precision", across)
            axis.set_ylim(-0.02, 1.02)
            axis.set_title(f"Precision@{k}")
            if number == 0:
                axis.set_ylabel("share of samples")
        legend_below(figure, axes[0])
    return figure


def surprisal(
    results: xr.Dataset | Mapping[str, xr.Dataset], *, across: Across | None = None
) -> Figure:
    """Mean surprisal in nats by layer; bands are 95% intervals.

    Parameters
    ----------
    results, across
        As for `precision`.
    """
    datasets = _labelled(results)
    with style():
        figure, (axis,) = panels(1, 4.2, 3.2)
        _curves(axis, datasets, "surprisal", across)
        axis.set_ylim(bottom=0)
        axis.set_title("Surprisal")
        axis.set_ylabel("nats")
        legend_below(figure, axis)
    return figure


def _labelled(results: xr.Dataset | Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    # A Dataset is a mapping too.
    datasets = {"": results} if isinstance(results, xr.Dataset) else dict(results)
    if not datasets:
        raise AnalysisError("nothing to draw: no results were passed")
    return datasets


def _curves(
    axis: Axes, datasets: Mapping[str, xr.Dataset], name: str, across: Across | None
) -> None:
    several = len(datasets) > 1
    horizontal = across or ("depth" if several else "layer")
    for number, (label, dataset) in enumerate(datasets.items()):
        for order, shortcut in enumerate(dataset.shortcut.values.tolist()):
            at = dataset.sel(shortcut=shortcut)
            colour = COLOURS[(number if several else order) % len(COLOURS)]
            line = LINE_STYLES.get(shortcut, "-.")
            text = f"{label}, {shortcut}" if several else NAMES.get(shortcut, shortcut)
            axis.plot(at[horizontal], at[name], linestyle=line, color=colour, label=text)
            axis.fill_between(
                at[horizontal],
                at[name + "_low"],
                at[name + "_high"],
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
    axis.set_xlabel("layer" if horizontal == "layer" else "layer / number of blocks")
    axis.tick_params(color=INK)
    if horizontal == "layer":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
