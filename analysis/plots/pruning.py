"""Perplexity against the number of blocks taken out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from analysis.plots.style import COLOURS, INK, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = {
    "remove": "removed",
    "replace": "replaced by linear maps",
    "replace_distilled": "replaced, maps distilled",
    "remove_distilled": "removed, all distilled",
}
CRITERIA = {
    "linearity": "linearity score",
    "linearity_no_residual": "linearity score, no residual",
    "block_influence": "block influence",
    "angular_distance": "angular distance",
}
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D")


def pruning(dataset: xr.Dataset) -> Figure:
    """Perplexity by blocks taken out, with 95% bands, beside what the blocks were ranked by.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.pruning.curves` returned.
    """
    with style():
        figure, (curves, ranks) = panels(2, 4.6, 3.6)
        counts = dataset["count"].values
        for number, variant in enumerate(dataset.variant.values.tolist()):
            at, colour = dataset.sel(variant=variant), COLOURS[number % len(COLOURS)]
            curves.plot(
                counts,
                at.perplexity,
                _LINES[number % len(_LINES)],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4,
                color=colour,
                label=WAYS.get(variant, variant),
            )
            curves.fill_between(
                counts, at.perplexity_low, at.perplexity_high, color=colour, alpha=0.15, linewidth=0
            )
        curves.set_yscale("log")
        curves.set_xlabel("blocks taken out")
        curves.set_ylabel("perplexity")
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        _ranks(ranks, dataset)
        legend_below(figure, curves)
    return figure


def _ranks(axis: Axes, dataset: xr.Dataset) -> None:
    first = dataset.criterion.isel(scored=0).values
    blocks = np.arange(len(first))
    axis.plot(blocks, first, "o", markersize=3, color=INK)
    order = dataset.order.values
    axis.plot(order, first[order], "o", markersize=5, color=COLOURS[1])
    for step, block in enumerate(order.tolist(), 1):
        axis.annotate(
            str(step), (block, first[block]), xytext=(0, 5), textcoords="offset points", fontsize=7
        )
    axis.set_xlabel("block (numbers: order of removal)")
    axis.set_ylabel(CRITERIA.get(dataset.attrs["by"], dataset.attrs["by"]))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
