"""How much of one layer a linear map recovers from another: r² of all pairs, from Grams alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import xarray as xr

from actstore.errors import AnalysisError
from actstore.fitting import MapSet, identity_r2
from actstore.grams import Gram, gram
from analysis import results

if TYPE_CHECKING:
    from actstore.store import Run


def heat_maps(
    maps: MapSet | Mapping[str, MapSet],
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
    maps : MapSet, or mapping of name to MapSet
        Fitted on other samples than the evaluation's, or the same for the in-sample r². Several
        are put side by side by name, such as ``{"mat": ..., "affine": ..., "ridge": ...}``; all
        are of the same layers.
    on : Run or Gram
        Evaluation samples of the same model; a Run's Gram is computed, or taken from its cache.
    average : {"uniform", "variance", None}
        Over coordinates, as for ``maps.r2``; None keeps a ``feature`` dimension.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``r2`` (shortcut, source, target), ``id`` the last shortcut, not clipped (``id`` falls far
        below 0); NaN for pairs without a map.

    Raises
    ------
    AnalysisError, FitError, SiteError, GramError
        Maps and samples do not belong together.
    """
    named = {"mat": maps} if isinstance(maps, MapSet) else dict(maps)
    if not named or "id" in named:
        raise AnalysisError("give maps by name; 'id' is the name of the baseline without any")
    first, *others = named.values()
    if any(other.columns != first.columns for other in others):
        raise AnalysisError(
            f"maps of the same layers can be compared, but they are of "
            f"{', '.join(f'{name}: {fitted.columns!r}' for name, fitted in named.items())}"
        )
    pairs = list(dict.fromkeys(pair for fitted in named.values() for pair in fitted))
    evaluation = (
        on
        if isinstance(on, Gram)
        else gram(on, sites=first.columns.sites, pairs=pairs, progress=progress)
    )
    scores = [fitted.r2(evaluation, average=average) for fitted in named.values()]
    values = xr.concat(
        [*scores, identity_r2(evaluation, pairs, average=average)],
        dim=xr.Variable("shortcut", [*named, "id"]),
        join="outer",
        coords="minimal",
        compat="override",
        combine_attrs="drop",
    )
    values.attrs = {"long_name": "r²", "average": average or "none"}
    corpora = ", ".join(dict.fromkeys(run["corpus"] for run in evaluation.provenance["runs"]))
    dataset = values.rename("r2").to_dataset().assign_attrs(samples=evaluation.n)
    record = results.provenance(
        "analysis.r2.heat_maps",
        maps=first,
        all_maps={name: fitted.provenance for name, fitted in named.items()},
        evaluation=evaluation.provenance,
        average=average,
    )
    return results.label(dataset, "r2", f"{evaluation.model} on {corpora}", record)
