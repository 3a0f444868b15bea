"""Heat maps of similarity between layers, and spectra by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.style import COLOURS, LINE_STYLES, MaxNLocator, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "cka": "linear CKA",
    "svcca": "SVCCA",
    "pwcca": "PWCCA",
    "procrustes": "Procrustes distance",
}
NUMBERS = {
    "effective_rank": "effective rank",
    "participation_ratio": "participation ratio",
}
SHARES = {
    "mean_cosine": "mean cosine",
    "mean_share": "share of the mean",
    "top_share": "share of the first component",
}
_DASHES = tuple(LINE_STYLES.values())


def similarity(dataset: xr.Dataset, measures: Sequence[str] | None = None) -> Figure:
    """A heat map of every pair of layers for each measure, from 0 to 1, distances from 0 to 2.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.similarity.layers` returned.
    measures : sequence of str, optional
        Which to draw; default: all of them.
    """
    known = [name for name in TITLES if name in dataset]
    chosen = known if measures is None else list(measures)
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise AnalysisError(f"measure {unknown[0] if unknown else ''!r}; the result has {known}")
    with style():
        figure, axes = panels(len(chosen), 3.9, 3.5)
        for axis, name in zip(axes, chosen, strict=True):
            values = dataset[name].transpose("a", "b")
            image = axis.imshow(
                values,
                vmin=0,
                vmax=2 if name == "procrustes" else 1,
                cmap="viridis_r" if name == "procrustes" else "viridis",
                interpolation="none",
                aspect="auto",
            )
            axis.grid(False)
            axis.spines[:].set_visible(False)
            axis.set_title(TITLES[name])
            _ticks(axis, values.a.values.tolist(), values.b.values.tolist())
            figure.colorbar(image, ax=axis, shrink=0.85).outline.set_visible(False)
    return figure


def spectra(dataset: xr.Dataset) -> Figure:
    """Effective dimensions, shares and cosines by layer, and the spectrum of some layers.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.spectra.layers` returned.
    """
    with style():
        figure, axes = panels(3, 4.2, 3.3)
        _lines(axes[0], dataset, NUMBERS, 0)
        for number, fraction in enumerate(dataset.fraction.values.tolist()):
            axes[0].plot(
                range(dataset.sizes["layer"]),
                dataset.rank_for.sel(fraction=fraction),
                color=COLOURS[(number + 2) % len(COLOURS)],
                linestyle=":",
                label=f"for {fraction:.0%} of the variance",
            )
        axes[0].set_yscale("log")
        axes[0].set_title("directions in use")
        _lines(axes[1], dataset, SHARES, 0)
        axes[1].set_title("leaning one way")
        n_layers = dataset.sizes["layer"]
        for number, k in enumerate(sorted({0, n_layers // 3, 2 * n_layers // 3, n_layers - 1})):
            values = dataset.spectrum.isel(layer=k).values
            values = values[np.isfinite(values) & (values > 0)]
            axes[2].loglog(
                np.arange(1, len(values) + 1),
                values,
                color=COLOURS[number],
                linestyle=_DASHES[number % len(_DASHES)],
                label=f"layer {dataset.layer.values[k]}",
            )
        axes[2].set_title("spectrum")
        axes[2].set_xlabel("principal component")
        axes[2].set_ylabel("share of the variance")
        for axis in axes:
            axis.legend()
        for axis in axes[:2]:
            _layer_axis(axis, dataset.layer.values.tolist())
    return figure


def _lines(axis: Axes, dataset: xr.Dataset, names: dict[str, str], first: int) -> None:
    places = range(dataset.sizes["layer"])
    for number, name in enumerate(name for name in names if name in dataset):
        colour = COLOURS[first + number]
        dash = _DASHES[number % len(_DASHES)]
        axis.plot(places, dataset[name], color=colour, linestyle=dash, label=names[name])
        if f"{name}_low" in dataset:
            ends = dataset[f"{name}_low"], dataset[f"{name}_high"]
            axis.fill_between(places, *ends, color=colour, alpha=0.2, linewidth=0)


def _layer_axis(axis: Axes, names: list[object]) -> None:
    axis.set_xlabel("layer")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.xaxis.set_major_formatter(
        lambda place, _: str(names[int(place)]) if 0 <= place < len(names) else ""
    )


def _ticks(axis: Axes, rows: list[object], columns: list[object]) -> None:
    """About eight labels on each axis; long names are turned."""
    for names, put in ((rows, axis.set_yticks), (columns, axis.set_xticks)):
        step = max(1, -(-len(names) // 8))
        put(range(0, len(names), step), [str(name) for name in names[::step]])
    if any(isinstance(name, str) for name in columns):
        axis.tick_params(axis="x", rotation=60)
