"""Curves of lenses that read tokens off hidden layers: the tuned lens and the future lens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.style import COLOURS, INK, LINE_STYLES, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READOUTS = {
    "tuned": "tuned lens",
    "mat": "mat (least squares)",
    "id": "id (no map)",
}


def tuned_lens(dataset: xr.Dataset, k: int | None = None) -> Figure:
    """Precision@k, surprisal and KL of the tuned lens, ``mat`` and ``id`` by layer.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.tuned_lens.curves` returned.
    k : int, optional
        Default: the least.
    """
    chosen = _chosen(dataset, k)
    with style():
        figure, axes = panels(3, 3.9, 3.2)
        at = dataset.sel(k=chosen)
        for axis, name, title in zip(
            axes,
            ("precision", "surprisal", "kl"),
            (f"Precision@{chosen}", "Surprisal (nats)", "KL to the model (nats)"),
            strict=True,
        ):
            bands(axis, at, name, "shortcut", "layer")
            axis.set_title(title)
            axis.set_ylim(bottom=0)
        legend_below(figure, axes[0], 3)
    return figure


def future_lens(dataset: xr.Dataset, k: int | None = None) -> Figure:
    """Precision@k of the model's own later predictions by layer, a line for each offset.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.future_lens.curves` returned.
    k : int, optional
        Default: the least.
    """
    chosen = _chosen(dataset, k)
    offsets = dataset.offset.values.tolist()
    with style():
        figure, (axis,) = panels(1, 6.2, 3.4)
        for number, offset in enumerate(offsets):
            at = dataset.sel(k=chosen, offset=offset)
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(at.layer, at.precision, color=colour, label=f"{offset} ahead")
            axis.fill_between(
                at.layer, at.precision_low, at.precision_high, color=colour, alpha=0.2, linewidth=0
            )
            for name, dash in (("bigram", "--"), ("mean", ":")):
                value = float(at[f"{name}_precision"])
                axis.axhline(value, color=colour, linestyle=dash, linewidth=1.0)
        # Two more entries say what the dashes are, whatever their colour.
        axis.plot([], [], color=INK, linestyle="--", label="bigram")
        axis.plot([], [], color=INK, linestyle=":", label="mean state")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("layer")
        axis.set_ylabel(f"Precision@{chosen}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axis, 3)
    return figure


def bands(
    axis: Axes,
    dataset: xr.Dataset,
    name: str,
    across: str,
    along: str,
    labels: Mapping[str, str] | None = None,
    colours: Sequence[str] = COLOURS,
) -> None:
    """A line with its interval for each value of one dimension, along another."""
    names = READOUTS if labels is None else labels
    for number, value in enumerate(dataset[across].values.tolist()):
        at = dataset.sel({across: value})
        colour = colours[number % len(colours)]
        dash = LINE_STYLES.get(str(value), list(LINE_STYLES.values())[number % len(LINE_STYLES)])
        axis.plot(
            at[along], at[name], color=colour, linestyle=dash, label=names.get(value, str(value))
        )
        if f"{name}_low" in at:
            ends = at[f"{name}_low"], at[f"{name}_high"]
            axis.fill_between(at[along], *ends, color=colour, alpha=0.2, linewidth=0)
    axis.set_xlabel(along)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _chosen(dataset: xr.Dataset, k: int | None) -> int:
    known = dataset.k.values.tolist()
    if k is not None and k not in known:
        raise AnalysisError(f"k={k} asked for, but the result has {known}")
    return int(known[0] if k is None else k)
