"""Loss and linearity of plain and regularised models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xarray as xr

from analysis.plots.style import COLOURS, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("-", "--", "-.", ":")
_PANELS = (("linearity", "linearity score"), ("linearity_no_residual", "without the residual"))


def pretraining(dataset: xr.Dataset) -> Figure:
    """Training loss, and linearity of each step between layers, by arm.

    Lines are means over seeds, thin ones single seeds; bands are 95% intervals over seeds.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.pretraining.compare` returned.
    """
    with style():
        figure, (losses, *rest) = panels(3, 3.7, 3.4)
        for number, arm in enumerate(dataset.arm.values.tolist()):
            at, colour = dataset.sel(arm=arm), COLOURS[number % len(COLOURS)]
            line = _LINES[number % len(_LINES)]
            for seed in at.seed.values.tolist():
                losses.plot(
                    at.step, at.curve.sel(seed=seed), line, color=colour, linewidth=0.6, alpha=0.6
                )
            losses.plot(at.step, at.curve.mean("seed"), line, color=colour, label=arm)
            for axis, (name, _) in zip(rest, _PANELS, strict=True):
                axis.plot(
                    at.source, at["mean_" + name], line, marker="o", markersize=3, color=colour
                )
                axis.fill_between(
                    at.source,
                    at[f"mean_{name}_low"].clip(0, 1),
                    at[f"mean_{name}_high"].clip(0, 1),
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
        losses.set_xlabel("step")
        losses.set_ylabel("cross-entropy (nats per token)")
        for axis, (_, title) in zip(rest, _PANELS, strict=True):
            axis.set_title(title)
            axis.set_xlabel("from layer")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, losses, columns=4)
    return figure
