"""Perplexity with spans of blocks removed, and with a map folded in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from analysis.plots.style import COLOURS, INK, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"removed": "removed", "folded": "a map folded in"}


def folding(dataset: xr.Dataset) -> Figure:
    """How many times the whole model's perplexity each variant has, by span, on a log axis.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.folding.compare` returned.
    """
    places = np.arange(dataset.sizes["span"])
    with style():
        figure, (axis,) = panels(1, max(4.2, 0.7 * len(places) + 2), 3.3)
        for number, variant in enumerate(dataset.variant.values.tolist()):
            at = dataset.sel(variant=variant)
            below, above = at.ratio - at.ratio_low, at.ratio_high - at.ratio
            axis.errorbar(
                places + 0.12 * (number - 0.5),
                at.ratio,
                yerr=np.stack([below, above]),
                fmt="os"[number % 2],
                color=COLOURS[number],
                capsize=3,
                label=LABELS.get(variant, variant),
            )
        axis.axhline(1, color=INK, linestyle=":", linewidth=1)
        axis.set_yscale("log")
        axis.set_xticks(places, dataset.span.values)
        axis.set_xlabel("blocks taken out")
        axis.set_ylabel("perplexity, times the whole model's")
        legend_below(figure, axis)
    return figure
