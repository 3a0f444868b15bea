"""How many of the decoded tokens people find plausible, by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from analysis.plots.style import (
    COLOURS,
    LINE_STYLES,
    NAMES,
    MaxNLocator,
    legend_below,
    panels,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plausibility(dataset: xr.Dataset) -> Figure:
    """Share of judgements that say plausible by layer, one line for each method.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.annotation.rates` returned.
    """
    with style():
        figure, (axis,) = panels(1, 5, 3.4)
        for number, shortcut in enumerate(dataset.shortcut.values.tolist()):
            at = dataset.sel(shortcut=shortcut)
            at = at.isel(layer=np.flatnonzero(at.layer_rate.notnull()))
            colour = COLOURS[number % len(COLOURS)]
            line = LINE_STYLES.get(shortcut, "-.")
            label = NAMES.get(shortcut, shortcut)
            axis.plot(at.layer, at.layer_rate, linestyle=line, color=colour, label=label)
            low, high = at.layer_rate_low, at.layer_rate_high
            axis.fill_between(at.layer, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("layer")
        axis.set_ylabel("judged plausible")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axis)
    return figure
