"""Least squares between layers: one factorisation of a source layer serves all its targets."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from tqdm import tqdm

from actstore.fitting.inputs import as_gram, by_source, one_ridge, ridge_values
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.minimum_norm import SourceRows, solve_rows
from actstore.fitting.pairs import layers_of, resolve_pairs
from actstore.fitting.reduced_rank import check_rank, reduce_rank
from actstore.fitting.solving import RAW, SAFE, Inverse, invert, spectrum
from actstore.fitting.validation import FOLDS, choose_ridges
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.threads import available_cores, one_blas_thread


def fit(
    on: Gram | RowSource,
    *,
    pairs: str | Iterable[Any] = "all",
    ridge: float | Sequence[float] = 0.0,
    intercept: bool = False,
    rank: int | None = None,
    weights: Any = None,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    progress: bool | None = None,
) -> MapSet:
    """Fit a linear map between every pair of layers asked for.

    A = argmin Σ‖x A − y‖² + α‖A‖², by default with neither intercept nor ridge: the map called
    *mat* in "Jump to Conclusions" (arXiv 2303.09435) §2. Where the source's rows do not
    determine A, the solution of smallest norm is taken.

    A source layer that is safely of full rank is solved from its moments by Cholesky. One that
    is not is solved from its rows by SVD, with the cut-off of `numpy.linalg.lstsq`; if only a
    Gram is at hand, from the moments' eigenvalues, with a warning. Each map says which
    (`LinearMap.method`), with its rank and condition. Nothing is ever added to the diagonal but
    `ridge`.

    Parameters
    ----------
    on : Run or Gram
        A Gram just computed remembers its run and can use its rows.
    pairs : {"all", "adjacent", "to_last", "ordered"} or list of (source, target)
        "all": every source before its target; "ordered": backwards too.
    ridge : float or sequence of float
        α ≥ 0, as scikit-learn's ``Ridge(alpha=)``; an intercept is not penalised. Of several, each
        pair takes the one of highest cross-validated r² (`cross_validate`), over the parts of
        a Gram or over five folds of a run's documents.
    intercept : bool
    rank : int, optional
        Highest rank of a map: reduced-rank regression, see `actstore.fitting.reduced_rank`.
    weights : (n_samples,) array of float ≥ 0, or str, optional
        Of the squared errors, where a run is given, as scikit-learn's ``sample_weight``; or the
        name of a numeric sample coordinate.
    sites, layers : optional
        As for `actstore.gram`, where a run is given.
    progress : bool, optional
        Default: a bar on a terminal.

    Returns
    -------
    MapSet

    Raises
    ------
    FitError
        A negative ridge or rank, unknown pairs, too few rows, or several ridges for a Gram
        without parts.
    SiteError
        A layer that is not there.
    """
    several = isinstance(ridge, Iterable) and not isinstance(ridge, str)
    ridges = ridge_values(ridge) if several else (one_ridge(ridge),)  # type: ignore[arg-type]
    if rank is not None:
        check_rank(rank)
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    moments = as_gram(
        on,
        sites,
        layers_of(pairs) if layers is None else layers,
        progress,
        FOLDS if several else None,
        weights,
    )
    places = resolve_pairs(moments.columns, pairs)
    if several:
        chosen = choose_ridges(moments, ridges, places, intercept, progress)
    else:
        chosen = dict.fromkeys(places, ridges[0])
    maps = {}
    for alpha in ridges:
        problem = _Problem(moments, alpha, intercept)
        targets = by_source(place for place in places if chosen[place] == alpha)
        solved = _solve_all(problem, targets, progress)
        _warn(problem, solved)
        for source, found in solved.items():
            for target in targets[source]:
                maps[source, target] = problem.linear_map(source, target, found, rank)
    provenance = {
        **moments.provenance,
        "n": moments.n,
        "ridge": list(ridges) if several else ridges[0],
        "intercept": intercept,
    }
    if rank is not None:
        provenance["rank"] = rank
    return MapSet({place: maps[place] for place in places}, moments.columns, provenance)


@dataclass(frozen=True)
class _Solved:
    """Maps of one source."""

    matrices: Mapping[int, np.ndarray]
    rank: int
    condition: float
    freedom: float
    method: str


class _Problem:
    """The moments with what is asked of them."""

    def __init__(self, moments: Gram, ridge: float, intercept: bool) -> None:
        self.gram = moments
        self.ridge = ridge
        self.intercept = intercept
        self.keys = moments.layers
        self.means = [moments.mean(key) for key in self.keys]
        self.eps = moments.eps
        self.safe = SAFE[moments.precision]

    def bias(self, source: int, target: int, matrix: np.ndarray) -> np.ndarray:
        """ȳ − x̄ A."""
        return np.asarray(self.means[target] - self.means[source] @ matrix)

    def linear_map(self, source: int, target: int, found: _Solved, rank: int | None) -> LinearMap:
        """One target's map, brought down to `rank` where that is asked for."""
        matrix = found.matrices[target]
        if rank is not None:
            cross = self.moments(source, target, centred=self.intercept)
            matrix = reduce_rank(matrix, cross, rank)
        return LinearMap(
            self.keys[source],
            self.keys[target],
            matrix,
            self.bias(source, target, matrix) if self.intercept else None,
            found.rank if rank is None else min(found.rank, rank),
            found.condition,
            found.method,
            found.freedom + self.intercept if rank is None else nan,
            self.ridge,
        )

    def moments(self, a: int, b: int, *, centred: bool) -> np.ndarray:
        return self.gram.cross(self.keys[a], self.keys[b], centred=centred)

    def solve(self, source: int, targets: Sequence[int]) -> _Solved:
        """The maps from one source, the quickest way that is safe."""
        raw = self.safe * RAW if self.gram.run is not None else self.safe
        found = self._by_cholesky(source, targets, self.safe, raw)
        if found is None and self.gram.run is not None:
            means = dict(enumerate(self.means)) if self.intercept else None
            rows = SourceRows(self.gram.run, self.gram.columns, means, self.gram.weights)
            return _Solved(*solve_rows(rows, source, targets, self.ridge), "svd")
        if found is None:
            width = self.gram.columns[source].width
            limit = 1 / (self.eps * width)
            found = self._by_cholesky(source, targets, limit, limit)
        return found or self._by_eigenvalues(source, targets)

    def _by_cholesky(
        self, source: int, targets: Sequence[int], limit: float, raw: float
    ) -> _Solved | None:
        """Full rank. Without an intercept the centred moments C are solved all the same, and
        the mean's part put back by Sherman and Morrison's formula,
        (C + αI + n μμᵀ)⁻¹ = P − n w wᵀ / (1 + n μᵀw), P = (C + αI)⁻¹, w = P μ: a large mean would
        cost the digits otherwise."""
        n, width = self.gram.rows, self.gram.columns[source].width
        if n > width or self.ridge > 0:
            inverse = invert(self.moments(source, source, centred=True), self.ridge, limit)
            if inverse is not None:
                matrices = {t: self._centred(inverse, source, t) for t in targets}
                freedom = inverse.freedom + self._mean_freedom(inverse, source)
                return _Solved(matrices, width, inverse.condition, freedom, "cholesky")
        if self.intercept or (n < width and self.ridge == 0):
            return None
        inverse = invert(self.moments(source, source, centred=False), self.ridge, raw)
        if inverse is None:
            return None
        matrices = {t: inverse.matrix @ self.moments(source, t, centred=False) for t in targets}
        return _Solved(matrices, width, inverse.condition, inverse.freedom, "cholesky")

    def _mean_freedom(self, inverse: Inverse, source: int) -> float:
        """What the mean's part, put back, adds: −α tr of the correction to (M + αI)⁻¹."""
        if self.intercept:
            return 0.0
        n, mean = self.gram.n, self.means[source]
        direction = inverse.matrix @ mean
        return float(self.ridge * n * (direction @ direction) / (1 + n * (mean @ direction)))

    def _centred(self, inverse: Inverse, source: int, target: int) -> np.ndarray:
        matrix = inverse.matrix @ self.moments(source, target, centred=True)
        if not self.intercept:
            n, mean = self.gram.n, self.means[source]
            direction = inverse.matrix @ mean
            weight = n / (1 + n * (mean @ direction))
            matrix += np.outer(direction, weight * self.bias(source, target, matrix))
        return matrix

    def _by_eigenvalues(self, source: int, targets: Sequence[int]) -> _Solved:
        found = spectrum(self.moments(source, source, centred=self.intercept), self.eps)
        back = found.vectors / (found.values + self.ridge)
        matrices = {
            t: back @ (found.vectors.T @ self.moments(source, t, centred=self.intercept))
            for t in targets
        }
        freedom = found.freedom(self.ridge)
        return _Solved(matrices, found.rank, found.condition, freedom, "eigh")


def _solve_all(
    problem: _Problem, targets: Mapping[int, Sequence[int]], progress: bool | None
) -> dict[int, _Solved]:
    """Every source, on own threads; those with most targets first."""
    order = sorted(targets, key=lambda source: -len(targets[source]))
    solved = {}
    with (
        one_blas_thread(),
        ThreadPoolExecutor(available_cores()) as pool,
        tqdm(
            total=len(order),
            desc="fit",
            unit="layer",
            disable=None if progress is None else not progress,
            file=sys.stderr,
        ) as bar,
    ):
        jobs = {source: pool.submit(problem.solve, source, targets[source]) for source in order}
        for source, job in jobs.items():
            solved[source] = job.result()
            bar.update()
    return solved


def _warn(problem: _Problem, solved: Mapping[int, _Solved]) -> None:
    """One line for what the moments alone could not settle to full accuracy."""
    if problem.gram.run is not None:
        return
    rough = [
        problem.keys[source]
        for source, found in sorted(solved.items())
        if found.method == "eigh" or found.condition**2 > problem.safe
    ]
    if rough:
        warnings.warn(
            f"source layers {', '.join(map(str, rough))} are too ill-conditioned for their Gram "
            "alone: their maps may be inexact; give the run, so that its rows can be used",
            stacklevel=3,
        )
