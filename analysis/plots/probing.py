"""Accuracy of probes by layer, beside what needs no probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.linearity import line, require
from analysis.plots.style import INK, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1"}


def probing(results: xr.Dataset | Mapping[str, xr.Dataset], *, measure: str = "accuracy") -> Figure:
    """Accuracy or macro F1 by layer; the control's and the majority's for one result.

    Parameters
    ----------
    results : xarray.Dataset, or mapping of label to Dataset
        What `analysis.probing.accuracy` returned.
    measure : {"accuracy", "macro_f1"}
    """
    if measure not in NAMES:
        raise AnalysisError(f"measure={measure!r} is not known: choose {' or '.join(NAMES)}")
    datasets = {"probe": results} if isinstance(results, xr.Dataset) else dict(results)
    if not datasets:
        raise AnalysisError("nothing to draw: no results were passed")
    with style():
        figure, (axis,) = panels(1, 4.6, 3.3)
        for number, (label, dataset) in enumerate(datasets.items()):
            require(dataset, "probing", "analysis.probing.accuracy")
            line(axis, dataset.layer, dataset, measure, number, label)
            if len(datasets) == 1:
                line(axis, dataset.layer, dataset, f"control_{measure}", 1, "shuffled labels")
                if measure == "accuracy":
                    axis.axhline(
                        float(dataset.majority), color=INK, linestyle=":", label="commonest class"
                    )
        axis.set_ylim(-0.02, 1.02)
        axis.set_ylabel(NAMES[measure])
        axis.set_xlabel("layer")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axis, columns=3)
    return figure
