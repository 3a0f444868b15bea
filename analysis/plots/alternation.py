"""Precision@k of schedules against the blocks they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.style import COLOURS, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "osD^vx+*"


def alternation(dataset: xr.Dataset, *, k: int = 1) -> Figure:
    """Precision@k over real blocks; a point is a schedule, its bar the 95% interval.

    A line joins the schedules of a family that has one for each number of blocks.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.alternation.curves` returned.
    k : int
    """
    if k not in dataset.k.values:
        raise AnalysisError(f"k={k} asked for, but the result has {dataset.k.values.tolist()}")
    at_k = dataset.sel(k=k)
    families = list(dict.fromkeys(dataset.family.values.tolist()))
    with style():
        figure, (axis,) = panels(1, 6.4, 4.2)
        for number, family in enumerate(families):
            of = at_k.isel(schedule=np.flatnonzero(at_k.family.values == family))
            of = of.isel(schedule=np.argsort(of.real_blocks.values, kind="stable"))
            single = len(np.unique(of.real_blocks)) == of.sizes["schedule"]
            value = of.precision.values
            axis.errorbar(
                of.real_blocks.values,
                value,
                yerr=[value - of.precision_low.values, of.precision_high.values - value],
                fmt=_MARKERS[number % len(_MARKERS)],
                linestyle="-" if single else "none",
                markersize=4,
                linewidth=1.2,
                elinewidth=0.8,
                color=COLOURS[number % len(COLOURS)],
                label=family,
            )
        axis.set_xlabel(f"blocks run, of {dataset.attrs['n_blocks']}")
        axis.set_ylabel(f"Precision@{k}")
        axis.set_ylim(-0.02, 1.02)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axis)
    return figure
