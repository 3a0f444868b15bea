"""How much of one layer a linear map recovers from another: r² of all pairs, from Grams alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xarray as xr

from actstore.fitting import identity_r2
from actstore.grams import Gram, gram
from analysis import results

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.store import Run


def heat_maps(
    maps: MapSet,
    on: Run | Gram,
    *,
    average: str | None = "uniform",
    progress: bool | None = None,
) -> xr.Dataset:
    """r² of the fitted maps (``mat``) beside the state taken as it is (``id``), for all pairs.

    r²_c = 1 − SSE_c/SST_c for each coordinate, SST about the mean of the evaluation samples,
    averaged uniformly over coordinates ("Jump to Conclusions", arXiv 2303.09435, §2). All of it
    follows from the evaluation samples' Gram; the activations are not read again.

    Parameters
    ----------
    maps : MapSet
        Fitted on other samples than the evaluation's, or the same for the in-sample r².
    on : Run or Gram
        Evaluation samples of the same model; a Run's Gram is computed, or taken from its cache.
    average : {"uniform", "variance", None}
        Over coordinates, as for ``maps.r2``; None keeps a ``feature`` dimension.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``r2`` (shortcut, source, target), not clipped (``id`` falls far below 0); NaN for pairs
        without a map.

    Raises
    ------
    FitError, SiteError, GramError
        Maps and samples do not belong together.
    """
    evaluation = (
        on if isinstance(on, Gram) else gram(on, sites=maps.columns.sites, progress=progress)
    )
    fitted = maps.r2(evaluation, average=average)
    identity = identity_r2(evaluation, list(maps), average=average)
    values = xr.concat(
        [fitted, identity],
        dim=xr.Variable("shortcut", ["mat", "id"]),
        join="exact",
        coords="minimal",
        compat="override",
        combine_attrs="drop",
    )
    values.attrs = {"long_name": "r²", "average": average or "none"}
    corpora = ", ".join(dict.fromkeys(run["corpus"] for run in evaluation.provenance["runs"]))
    dataset = values.rename("r2").to_dataset().assign_attrs(samples=evaluation.n)
    record = results.provenance(
        "analysis.r2.heat_maps", maps=maps, evaluation=evaluation.provenance, average=average
    )
    return results.label(dataset, "r2", f"{evaluation.model} on {corpora}", record)
