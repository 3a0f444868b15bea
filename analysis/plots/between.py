"""Heat maps of affine maps between two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from analysis.plots.style import panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def between(dataset: xr.Dataset) -> Figure:
    """Held-out r² from layer to layer of two models, both ways, clipped to [0, 1].

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.between.scores` returned.
    """
    first, second = dataset.attrs["models"]
    with style():
        figure, axes = panels(2, 3.9, 3.6)
        for axis, name, title in zip(
            axes, ("forth", "back"), (f"to {second}", f"to {first}"), strict=True
        ):
            image = axis.imshow(
                np.clip(dataset[name].transpose("a", "b"), 0, 1),
                vmin=0,
                vmax=1,
                cmap="viridis",
                interpolation="none",
                aspect="auto",
            )
            axis.grid(False)
            axis.spines[:].set_visible(False)
            axis.set_title(title)
            axis.set_xlabel(f"layer of {second}")
            axis.set_ylabel(f"layer of {first}")
            for names, put in ((dataset.b, axis.set_xticks), (dataset.a, axis.set_yticks)):
                step = max(1, -(-names.size // 8))
                put(range(0, names.size, step), names.values[::step])
        bar = figure.colorbar(image, ax=axes, shrink=0.85, aspect=25, pad=0.02)
        bar.set_label("r², clipped to [0, 1]")
        bar.outline.set_visible(False)
    return figure
