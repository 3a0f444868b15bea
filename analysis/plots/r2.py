"""Heat maps of r² over pairs of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from analysis.plots.style import NAMES, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def r2_heat_maps(dataset: xr.Dataset, shortcuts: Sequence[str] | None = None) -> Figure:
    """r² of every pair of layers, one heat map per shortcut, side by side on one scale.

    Values are clipped to [0, 1] in the picture, as in "Jump to Conclusions" §2, not in the data.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.r2.heat_maps` returned.
    shortcuts : sequence of str, optional
        Which to draw; default: all of them.
    """
    chosen = list(dataset.shortcut.values.tolist() if shortcuts is None else shortcuts)
    unknown = [name for name in chosen if name not in dataset.shortcut.values]
    if unknown or not chosen:
        raise AnalysisError(
            f"shortcut {unknown[0] if unknown else ''!r}; the result has "
            f"{dataset.shortcut.values.tolist()}"
        )
    with style():
        figure, axes = panels(len(chosen), 3.9, 3.7)
        for axis, shortcut in zip(axes, chosen, strict=True):
            values = dataset.r2.sel(shortcut=shortcut).transpose("source", "target")
            image = axis.imshow(
                np.ma.masked_invalid(np.clip(values, 0, 1)),
                vmin=0,
                vmax=1,
                cmap="viridis",
                interpolation="none",
                aspect="equal",
            )
            axis.grid(False)
            axis.spines[:].set_visible(False)
            axis.set_title(NAMES.get(shortcut, shortcut))
            axis.set_xlabel("to layer")
            axis.set_ylabel("from layer")
            targets, sources = values.target.values, values.source.values
            axis.set_xticks(*_ticks(targets))
            axis.set_yticks(*_ticks(sources))
        bar = figure.colorbar(image, ax=axes, shrink=0.85, aspect=25, pad=0.02)
        bar.set_label("r², clipped to [0, 1]")
        bar.outline.set_visible(False)
    return figure


def _ticks(layers: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Positions and labels of about eight round layer numbers."""
    places = np.flatnonzero(layers % max(1, -(-len(layers) // 8)) == 0)
    return places, layers[places]
