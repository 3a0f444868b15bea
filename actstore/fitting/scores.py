"""r² of maps on any rows, from the rows' Gram alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xarray as xr

from actstore.errors import FitError
from actstore.fitting.least_squares import as_gram
from actstore.fitting.maps import MapSet
from actstore.fitting.pairs import resolve_pairs
from actstore.grams.columns import Columns
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.threads import available_cores, one_blas_thread

AVERAGES = ("uniform", "variance", None)
# An error this small beside the coordinate's mean is rounding: the coordinate is met exactly.
ROUNDING = 1e-13


def r2(
    maps: MapSet,
    on: Gram | RowSource,
    *,
    average: str | None = "uniform",
    progress: bool | None = None,
) -> xr.DataArray:
    """Coefficient of determination of every map.

    r²_c = 1 − SSE_c / SST_c for each target coordinate c, SST about the mean of these rows
    ("Jump to Conclusions", arXiv 2303.09435, §2), from
    SSE = diag(Cyy) − 2 diag(AᵀCxy) + diag(AᵀCxxA) + n (ȳ − x̄A − b)², C centred: no digits are
    lost to a large mean. A coordinate that is constant on these rows counts 1 where it is met
    to within rounding and 0 otherwise, as in scikit-learn's ``r2_score``.

    Parameters
    ----------
    maps : MapSet
    on : Run or Gram
        Of the same model; other corpora are welcome.
    average : {"uniform", "variance", None}
        Over coordinates: mean of r²_c; weighted by SST_c, which is 1 − ΣSSE/ΣSST; or none.
    progress : bool, optional

    Returns
    -------
    DataArray (source, target), or (source, target, feature) without average
        NaN for pairs that were not fitted.

    Raises
    ------
    FitError
        Another model or width, or an unknown average.
    SiteError
        A layer that is not there.
    """
    columns = maps.columns
    layers = columns.keys() if len(columns.sites) == 1 else None
    evaluation = as_gram(on, columns.sites, layers, progress)
    _check_model(maps, evaluation)
    places = {k: evaluation.columns.index(column) for k, column in enumerate(columns)}
    for k, place in places.items():
        if columns[k].width != evaluation.columns[place].width:
            raise FitError(
                f"{columns[k]} has {columns[k].width} features in the maps and "
                f"{evaluation.columns[place].width} in {evaluation!r}"
            )

    def errors(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        keys = evaluation.layers
        x = keys[places[source]]
        inner = evaluation.cross(x, x, centred=True)
        mean = evaluation.mean(x)
        found = {}
        for target in targets:
            y = keys[places[target]]
            fitted = maps.at((source, target))
            matrix = fitted.matrix.astype(np.float64, copy=False)
            cross = evaluation.cross(x, y, centred=True)
            cross *= -2
            cross += inner @ matrix
            residual = evaluation.mean(y) - mean @ matrix
            if fitted.bias is not None:
                residual -= fitted.bias
            sse = evaluation.variance(y) + np.einsum("ij,ij->j", matrix, cross)
            sse = np.maximum(sse, 0.0) + evaluation.n * residual**2
            rounding = evaluation.n * (ROUNDING * evaluation.mean(y)) ** 2
            found[target] = np.where(sse > rounding, sse, 0.0)
        return found

    totals = {k: evaluation.variance(evaluation.layers[place]) for k, place in places.items()}
    result = _score(columns, maps.places, errors, totals, average)
    result.attrs = _attributes(maps.provenance, evaluation, average)
    return result


def identity_r2(
    on: Gram | RowSource,
    pairs: str | Iterable[Any] = "all",
    *,
    average: str | None = "uniform",
    progress: bool | None = None,
) -> xr.DataArray:
    """r² of taking a source layer itself for the target: the baseline *id* of the paper.

    Parameters
    ----------
    on : Run or Gram
    pairs, average, progress
        As for `fit` and `r2`.

    Returns
    -------
    DataArray
        As from `r2`; NaN where widths differ.
    """
    evaluation = as_gram(on, None, None, progress)
    columns, keys = evaluation.columns, evaluation.layers

    def errors(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        x = keys[source]
        found = {}
        for target in targets:
            y = keys[target]
            if evaluation.width(x) != evaluation.width(y):
                found[target] = np.full(evaluation.width(y), np.nan)
                continue
            cross = np.diagonal(evaluation.cross(x, y, centred=True))
            sse = evaluation.variance(x) + evaluation.variance(y) - 2 * cross
            residual = evaluation.mean(y) - evaluation.mean(x)
            found[target] = np.maximum(sse, 0.0) + evaluation.n * residual**2
        return found

    totals = {k: evaluation.variance(key) for k, key in enumerate(keys)}
    result = _score(columns, resolve_pairs(columns, pairs), errors, totals, average)
    result.attrs = _attributes({}, evaluation, average)
    return result


def _score(
    columns: Columns,
    places: Sequence[tuple[int, int]],
    errors: Callable[[int, Sequence[int]], Mapping[int, np.ndarray]],
    totals: Mapping[int, np.ndarray],
    average: str | None,
) -> xr.DataArray:
    """Put every pair's r² in its place; sources are shared out over threads."""
    if average not in AVERAGES:
        raise FitError(f"average={average!r} is not known: choose 'uniform', 'variance' or None")
    targets: dict[int, list[int]] = {}
    for source, target in places:
        targets.setdefault(source, []).append(target)
    rows, cols = sorted(targets), sorted({target for _, target in places})
    width = max(columns[k].width for k in cols)
    shape = (len(rows), len(cols)) + ((width,) if average is None else ())
    values = np.full(shape, np.nan)
    order = sorted(targets, key=lambda source: -len(targets[source]))
    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        jobs = {source: pool.submit(errors, source, targets[source]) for source in order}
        for source, job in jobs.items():
            for target, sse in job.result().items():
                place = rows.index(source), cols.index(target)
                if average is None:
                    values[place][: len(sse)] = _coordinates(sse, totals[target])
                elif average == "uniform":
                    values[place] = _coordinates(sse, totals[target]).mean()
                else:
                    values[place] = _coordinates(sse.sum()[None], totals[target].sum()[None])[0]
    dims = ("source", "target", "feature")[: values.ndim]
    labels = columns.keys() if len(columns.sites) == 1 else [str(column) for column in columns]
    coords = {"source": [labels[k] for k in rows], "target": [labels[k] for k in cols]}
    return xr.DataArray(values, coords, dims, name="r2")


def _coordinates(sse: np.ndarray, sst: np.ndarray) -> np.ndarray:
    """1 − SSE/SST; where SST is zero, 1 if SSE is too and else 0 (scikit-learn's rule)."""
    constant = sst == 0
    found = 1 - sse / np.where(constant, 1.0, sst)
    return np.where(constant & ~np.isnan(sse), (sse == 0).astype(float), found)


def _check_model(maps: MapSet, evaluation: Gram) -> None:
    ours, theirs = (p.get("model_fingerprint") for p in (maps.provenance, evaluation.provenance))
    if ours and theirs and ours != theirs:
        raise FitError(
            f"the maps were fitted on {maps.provenance['model']} and the rows come from "
            f"{evaluation.model}, which has other weights"
        )


def _attributes(fitted: Mapping[str, Any], evaluation: Gram, average: str | None) -> dict[str, Any]:
    runs = evaluation.provenance["runs"]
    return {
        "long_name": "coefficient of determination",
        "average": average or "none",
        "model": evaluation.model,
        "evaluated_on": ", ".join(run["corpus"] for run in runs),
        "n": evaluation.n,
        "provenance": json.dumps(
            {"maps": dict(fitted), "evaluation": evaluation.provenance}, ensure_ascii=False
        ),
    }
