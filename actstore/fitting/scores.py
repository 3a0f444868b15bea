"""Scores of maps on any rows, from the rows' Gram alone: r², its interval, mean squared error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats

from actstore.errors import FitError
from actstore.fitting.inputs import as_gram
from actstore.fitting.maps import MapSet
from actstore.fitting.squared_errors import Evaluation
from actstore.fitting.tables import attributes, check_average, r2_values, tabulate
from actstore.grams.pairs import resolve_pairs
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


def r2(
    maps: MapSet,
    on: Gram | RowSource,
    *,
    average: str | None = "uniform",
    progress: bool | None = None,
) -> xr.DataArray:
    """Coefficient of determination of every map.

    r²_c = 1 − SSE_c / SST_c for each target coordinate c, SST about the mean of these rows
    ("Jump to Conclusions", arXiv 2303.09435, §2); see `squared_errors` for SSE. A coordinate that
    is constant on these rows counts 1 where it is met to within rounding and 0 otherwise, as in
    scikit-learn's ``r2_score``.

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
    check_average(average)
    rows = evaluation_of(maps, on, progress)

    def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        found = rows.errors(maps, source, targets)
        return {t: r2_values(sse, rows.total(t), average) for t, sse in found.items()}

    trailing = "feature" if average is None else None
    result = tabulate(maps.columns, maps.places, values, "r2", trailing=trailing)
    rows.warn()
    result.attrs = attributes(
        "coefficient of determination", maps.provenance, rows.gram, average=average or "none"
    )
    return result


def mse(
    maps: MapSet,
    on: Gram | RowSource,
    *,
    average: str | None = "uniform",
    progress: bool | None = None,
) -> xr.DataArray:
    """Mean squared error of every map: Σ(y − xA − b)² / n.

    Parameters
    ----------
    maps, on, progress
        As for `r2`.
    average : {"uniform", None}
        Mean over coordinates, or none.

    Returns
    -------
    DataArray (source, target), or (source, target, feature) without average
        In squared units of the activations; NaN for pairs that were not fitted.

    Raises
    ------
    FitError
        Another model or width, or an unknown average.
    """
    check_average(average, ("uniform", None))
    rows = evaluation_of(maps, on, progress)

    def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        found = rows.errors(maps, source, targets)
        each = {target: sse / rows.gram.n for target, sse in found.items()}
        return each if average is None else {t: np.asarray(v.mean()) for t, v in each.items()}

    trailing = "feature" if average is None else None
    result = tabulate(maps.columns, maps.places, values, "mse", trailing=trailing)
    rows.warn()
    result.attrs = attributes(
        "mean squared error", maps.provenance, rows.gram, average=average or "none"
    )
    return result


def r2_interval(
    maps: MapSet,
    on: Gram | RowSource,
    *,
    level: float = 0.95,
    average: str = "uniform",
    parts: int = 10,
    progress: bool | None = None,
) -> xr.Dataset:
    """r² of every map with a jackknife interval over groups of evaluation documents.

    The maps stay as they are; each part of the evaluation rows is left out in turn. Squared errors
    add up over parts, so that this needs the parts' Grams and nothing else. Parts may differ in
    size: the delete-m_j jackknife of Busing, Meijer and van der Leeden (1999), "Delete-m jackknife
    for unequal m", with Student's t of G − 1 degrees of freedom.

    Parameters
    ----------
    maps : MapSet
    on : Gram with parts, or Run
    level : float
        Coverage, between 0 and 1.
    average : {"uniform", "variance"}
        As for `r2`.
    parts : int
        Folds that a run's documents are dealt out to, each with the memory of a Gram; a Gram has
        its own.
    progress : bool, optional

    Returns
    -------
    Dataset (source, target)
        ``r2``, ``standard_error``, ``low`` and ``high``.

    Raises
    ------
    FitError
        A Gram without parts, a level that is not between 0 and 1, or as for `r2`.
    """
    check_average(average, ("uniform", "variance"))
    if not 0 < level < 1:
        raise FitError(f"level={level!r}: give a coverage between 0 and 1, such as 0.95")
    rows = evaluation_of(maps, on, progress, parts)
    shares = [Evaluation(maps.columns, part) for part in rows.gram.parts]
    sizes = np.array([share.gram.n for share in shares], float)

    def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        by_part = [share.errors(maps, source, targets) for share in shares]
        found = {}
        for target in targets:
            sse = np.stack([errors[target] for errors in by_part])
            sst = _totals_without(rows, shares, target, sizes)
            full = r2_values(sse.sum(axis=0), rows.total(target), average)
            left_out = r2_values(np.maximum(sse.sum(axis=0) - sse, 0.0), sst, average)
            found[target] = np.stack([full, _jackknife_error(full, left_out, sizes)])
        return found

    both = tabulate(maps.columns, maps.places, values, "r2", {"part": ["r2", "standard_error"]})
    rows.warn(*shares)
    value = both.sel(part="r2", drop=True)
    error = both.sel(part="standard_error", drop=True).rename("standard_error")
    reach = stats.t.ppf(0.5 + level / 2, len(shares) - 1) * error
    result = xr.Dataset(
        {"r2": value, "standard_error": error, "low": value - reach, "high": value + reach}
    )
    result.attrs = attributes(
        "coefficient of determination",
        maps.provenance,
        rows.gram,
        average=average,
        level=level,
        parts=len(shares),
    )
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
    check_average(average)
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    rows = as_gram(on, None, None, progress, pairs=pairs)
    columns, keys = rows.columns, rows.layers

    def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        x = keys[source]
        found = {}
        for target in targets:
            y = keys[target]
            total = rows.variance(y)
            if rows.width(x) != rows.width(y):
                sse = np.full(rows.width(y), np.nan)
            else:
                cross = np.diagonal(rows.cross(x, y, centred=True))
                residual = rows.mean(y) - rows.mean(x)
                sse = np.maximum(rows.variance(x) + total - 2 * cross, 0.0) + rows.n * residual**2
            found[target] = r2_values(sse, total, average)
        return found

    trailing = "feature" if average is None else None
    result = tabulate(columns, resolve_pairs(columns, pairs), values, "r2", trailing=trailing)
    result.attrs = attributes("coefficient of determination", {}, rows, average=average or "none")
    return result


def evaluation_of(
    maps: MapSet, on: Gram | RowSource, progress: bool | None, parts: int | None = None
) -> Evaluation:
    """The rows to score maps on, with their Gram."""
    columns = maps.columns
    layers = columns.keys() if len(columns.sites) == 1 else None
    pairs = columns.keys_of(maps.places)
    rows = as_gram(on, columns.sites, layers, progress, parts, pairs=pairs)
    return Evaluation(columns, rows, maps.provenance)


def _totals_without(
    rows: Evaluation, shares: Sequence[Evaluation], target: int, sizes: np.ndarray
) -> np.ndarray:
    """(part, width) Σ(y − ȳ)² of all rows but one part's, about their own mean."""
    away = np.stack([share.mean(target) for share in shares]) - rows.mean(target)
    sums = sizes[:, None] * away
    squares = np.stack([share.total(target) for share in shares]) + sums * away
    left = (sizes.sum() - sizes)[:, None]
    without = squares.sum(axis=0) - squares - (sums.sum(axis=0) - sums) ** 2 / left
    constant = np.maximum(squares.sum(axis=0), 0.0) * 1e-13
    return np.where(without > constant, without, 0.0)


def _jackknife_error(full: np.ndarray, left_out: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Standard error of a statistic from its values without each part."""
    shares = sizes.sum() / sizes
    pseudo = shares * full - (shares - 1) * left_out
    centre = len(sizes) * full - ((1 - 1 / shares) * left_out).sum()
    return np.asarray(np.sqrt(((pseudo - centre) ** 2 / (shares - 1)).mean()))
