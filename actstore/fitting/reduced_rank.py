"""Reduced-rank regression from Grams alone, and what each rank explains.

Of all A of rank r, Σ‖y − xA‖² + α‖A‖² is least for A V Vᵀ, A the solution of full rank and V the r
leading eigenvectors of AᵀXᵀY, the covariance of the fitted values (Izenman 1975, "Reduced-rank
regression for the multivariate linear model"; Mukherjee and Zhu 2011 with a ridge).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from actstore.errors import FitError
from actstore.fitting.inputs import as_gram
from actstore.fitting.maps import MapSet
from actstore.fitting.squared_errors import Evaluation
from actstore.fitting.tables import attributes, tabulate
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


def check_rank(rank: Any) -> None:
    """FitError unless it is a whole number ≥ 1."""
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
        raise FitError(f"rank={rank!r}: a map's highest rank is a whole number ≥ 1")


def directions(matrix: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """(e, e) float64: the target's directions, those that the map explains best first.

    Parameters
    ----------
    matrix : (d, e) float64
        Solution of full rank.
    cross : (d, e) float64
        XᵀY of the fit, about the means where there is an intercept.
    """
    fitted = matrix.T @ cross
    fitted += fitted.T
    return np.ascontiguousarray(np.linalg.eigh(fitted)[1][:, ::-1])


def reduce_rank(matrix: np.ndarray, cross: np.ndarray, rank: int) -> np.ndarray:
    """(d, e) float64 best map of at most `rank`."""
    if rank >= min(matrix.shape):
        return matrix
    kept = directions(matrix, cross)[:, :rank]
    return (matrix @ kept) @ kept.T


def r2_by_rank(
    maps: MapSet,
    fitted_on: Gram | RowSource,
    on: Gram | RowSource | None = None,
    *,
    progress: bool | None = None,
) -> xr.DataArray:
    """Variance explained by the best map of every rank.

    Parameters
    ----------
    maps : MapSet
        Of full rank, as `fit` gives them.
    fitted_on : Run or Gram
        The rows of the fit, which say which directions to keep.
    on : Run or Gram, optional
        Rows to evaluate on. Default: those of the fit.
    progress : bool, optional

    Returns
    -------
    DataArray (source, target, rank)
        1 − ΣSSE/ΣSST over all coordinates, ranks 1…d; NaN beyond a pair's own width.

    Raises
    ------
    FitError
        Maps whose rank was reduced already, or rows of another model or width.
    """
    if "rank" in maps.provenance:
        raise FitError(f"{maps!r} were reduced to rank {maps.provenance['rank']}: fit without rank")
    columns = maps.columns
    layers = columns.keys() if len(columns.sites) == 1 else None
    pairs = columns.keys_of(maps.places)
    sources = [
        as_gram(g, columns.sites, layers, progress, pairs=pairs)
        for g in (fitted_on, on)
        if g is not None
    ]
    trained, rows = (Evaluation(columns, g, maps.provenance) for g in (sources[0], sources[-1]))

    def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        inner, found = rows.inner(source), {}
        for target in targets:
            linear = maps.at((source, target))
            matrix = linear.matrix.astype(np.float64, copy=False)
            fit_rows = trained.moments(source, target)
            cross, here = fit_rows.cross, rows.moments(source, target, inner)
            # Errors are counted about the point that all maps of the family meet.
            x, y = here.mean_x, here.mean_y
            if linear.bias is None:
                cross = cross + np.outer(fit_rows.n * fit_rows.mean_x, fit_rows.mean_y)
            else:
                x, y = x - fit_rows.mean_x, y - fit_rows.mean_y
            found[target] = _explained(matrix, directions(matrix, cross), here, x, y)
        return found

    result = tabulate(columns, maps.places, values, "r2", trailing="rank")
    result = result.assign_coords(rank=np.arange(1, result.sizes["rank"] + 1))
    result.attrs = attributes(
        "variance explained by rank", maps.provenance, rows.gram, average="variance"
    )
    return result


def _explained(
    matrix: np.ndarray, vectors: np.ndarray, rows: Any, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """(rank,) 1 − SSE/SST: each direction v takes 2 vᵀAᵀCxy v − vᵀAᵀCxxA v off the error."""
    ranks = min(matrix.shape)
    turned = matrix @ vectors[:, :ranks]
    cross = rows.cross @ vectors[:, :ranks] + np.outer(rows.n * x, y @ vectors[:, :ranks])
    inner = rows.inner @ turned + np.outer(rows.n * x, x @ turned)
    gained = np.einsum("ij,ij->j", turned, 2 * cross - inner)
    total = rows.total.sum()
    sse = total + rows.n * (y @ y) - np.cumsum(gained)
    return 1 - sse / total if total > 0 else np.full(ranks, np.nan)
