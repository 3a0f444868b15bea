"""Accuracy against blocks run, for fixed and for dynamic early exit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from analysis.plots.style import COLOURS, INK, NAMES, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POLICIES = (("fixed", "--", "s"), ("dynamic", "-", "o"))


def early_exit(dataset: xr.Dataset) -> Figure:
    """Precision@1 over mean blocks run, one panel for each shortcut; bands are 95% intervals.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.early_exit.sweep` returned.
    """
    shortcuts = dataset.shortcut.values.tolist()
    with style():
        figure, axes = panels(len(shortcuts), 4.2, 3.4)
        for axis, shortcut in zip(axes, shortcuts, strict=True):
            _panel(axis, dataset.sel(shortcut=shortcut))
            axis.set_title(NAMES.get(shortcut, shortcut))
        axes[0].set_ylabel("Precision@1")
        legend_below(figure, axes[0])
    return figure


def _panel(axis: Axes, at: xr.Dataset) -> None:
    swept = at.isel({"lambda": np.flatnonzero(at.blocks.notnull())})
    curves = {
        "fixed": (at.layer.values, at, "fixed_precision"),
        "dynamic": (swept.blocks.values, swept, "precision"),
    }
    for (policy, line, marker), colour in zip(_POLICIES, COLOURS[1::-1], strict=True):
        blocks, values, name = curves[policy]
        axis.plot(
            blocks,
            values[name],
            line,
            marker=marker,
            markersize=3,
            color=colour,
            label=f"{policy} exit",
        )
        low, high = values[name + "_low"], values[name + "_high"]
        axis.fill_between(blocks, low, high, color=colour, alpha=0.2, linewidth=0)
    for level in at.level.values.tolist():
        axis.axhline(level, color=INK, linewidth=0.6, linestyle=":")
    axis.set_xlabel("blocks run (mean)")
    axis.set_ylim(-0.02, 1.02)
