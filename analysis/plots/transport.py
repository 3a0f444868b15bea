"""How much of a later layer is carried there linearly, by layers and by tokens ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from analysis.plots.style import COLOURS, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def transport(dataset: xr.Dataset) -> Figure:
    """r² of the whitened target by pair of layers for each offset, and beside its ceiling.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.transport.operators` returned.
    """
    offsets = dataset.offset.values.tolist()
    with style():
        figure, axes = panels(2 * len(offsets), 3.6, 3.3)
        for number, offset in enumerate(offsets):
            at = dataset.sel(offset=offset)
            axis = axes[2 * number]
            image = axis.imshow(
                np.ma.masked_invalid(np.clip(at.r2_white.transpose("source", "target"), 0, 1)),
                vmin=0,
                vmax=1,
                cmap="viridis",
                interpolation="none",
                aspect="equal",
            )
            axis.grid(False)
            axis.spines[:].set_visible(False)
            axis.set_title("same token" if offset == 0 else f"{offset} ahead")
            axis.set_xlabel("to layer")
            axis.set_ylabel("from layer")
            for names, put in ((at.target, axis.set_xticks), (at.source, axis.set_yticks)):
                step = max(1, -(-names.size // 8))
                put(range(0, names.size, step), names.values[::step])
            axis = axes[2 * number + 1]
            last = at.isel(target=-1)
            for colour, (name, label) in enumerate(
                (("r2_white", "held-out map"), ("ceiling", "the most any map could do"))
            ):
                axis.plot(last.source, last[name], color=COLOURS[colour], label=label)
                if f"{name}_low" in last:
                    axis.fill_between(
                        last.source,
                        last[f"{name}_low"],
                        last[f"{name}_high"],
                        color=COLOURS[colour],
                        alpha=0.2,
                        linewidth=0,
                    )
            axis.set_title(f"to layer {int(last.target)}")
            axis.set_xlabel("from layer")
        axes[0].figure.colorbar(image, ax=axes[-2], shrink=0.8).outline.set_visible(False)
        legend_below(figure, axes[1])
    return figure
