"""Maps of one corpus on another: curves by layer, and tables as heat maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xarray as xr

from actstore.errors import AnalysisError
from analysis.plots.style import COLOURS, MaxNLocator, legend_below, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("-", "-.", ":", (0, (4, 1, 1, 1, 1, 1)))


def transfer(dataset: xr.Dataset, *, k: int = 1) -> Figure:
    """By layer, one panel for each evaluation corpus and one line for each fitting corpus.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `analysis.transfer.predictions` (Precision@k) or `analysis.transfer.r2` returned.
    k : int
        Of Precision@k.
    """
    kind = dataset.attrs.get("kind")
    if kind not in ("transfer", "transfer_r2"):
        raise AnalysisError(f"a result of kind {kind!r} given; analysis.transfer makes this one's")
    name, dim = ("precision", "layer") if kind == "transfer" else ("r2", "pair")
    at = dataset.sel(k=k) if kind == "transfer" else dataset
    across = at.layer.values if kind == "transfer" else at.source.values
    corpora = dataset.evaluated_on.values.tolist()
    with style():
        figure, axes = panels(len(corpora), 4.2, 3.3)
        for axis, corpus in zip(axes, corpora, strict=True):
            for number, fitted in enumerate(dataset.fitted_on.values.tolist()):
                values = at.sel(evaluated_on=corpus, fitted_on=fitted)
                colour = COLOURS[number % len(COLOURS)]
                identity = fitted == "id"
                axis.plot(
                    across,
                    values[name].clip(min=0),
                    linestyle="--" if identity else _LINES[number % len(_LINES)],
                    color=colour,
                    label="id (no map)" if identity else f"fitted on {fitted}",
                )
                low, high = (values[name + end].clip(min=0) for end in ("_low", "_high"))
                axis.fill_between(across, low, high, color=colour, alpha=0.2, linewidth=0)
            axis.set_title(f"evaluated on {corpus}")
            axis.set_xlabel("layer" if dim == "layer" else "from layer")
            axis.set_ylim(-0.02, 1.02)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].set_ylabel(f"Precision@{k}" if kind == "transfer" else "r² (from 0)")
        legend_below(figure, axes[0], columns=3)
    return figure
