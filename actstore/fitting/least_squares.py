"""Least squares between layers: one factorisation of a source layer serves all its targets."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from actstore.errors import FitError
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.minimum_norm import SourceRows, solve_rows
from actstore.fitting.pairs import layers_of, resolve_pairs
from actstore.fitting.solving import SAFE, Inverse, invert, spectrum
from actstore.grams.computing import gram as compute
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.threads import available_cores, one_blas_thread


def fit(
    on: Gram | RowSource,
    *,
    pairs: str | Iterable[Any] = "all",
    ridge: float = 0.0,
    intercept: bool = False,
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
    ridge : float
        α ≥ 0, as scikit-learn's ``Ridge(alpha=)``; an intercept is not penalised.
    intercept : bool
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
        A negative ridge, unknown pairs, or too few rows.
    SiteError
        A layer that is not there.
    """
    if not (np.isfinite(ridge) and ridge >= 0):
        raise FitError(f"ridge={ridge!r}: α is a number ≥ 0")
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    moments = as_gram(on, sites, layers_of(pairs) if layers is None else layers, progress)
    places = resolve_pairs(moments.columns, pairs)
    targets: dict[int, list[int]] = {}
    for source, target in places:
        targets.setdefault(source, []).append(target)
    problem = _Problem(moments, float(ridge), intercept)
    solved = _solve_all(problem, targets, progress)
    _warn(problem, solved)
    keys = moments.layers
    maps = {
        (source, target): LinearMap(
            keys[source],
            keys[target],
            found.matrices[target],
            problem.bias(source, target, found.matrices[target]) if intercept else None,
            found.rank,
            found.condition,
            found.method,
        )
        for source, found in solved.items()
        for target in targets[source]
    }
    return MapSet(
        {place: maps[place] for place in places},
        moments.columns,
        {**moments.provenance, "n": moments.n, "ridge": float(ridge), "intercept": intercept},
    )


def as_gram(
    on: Gram | RowSource,
    sites: str | Sequence[str] | None,
    layers: Sequence[Any] | None,
    progress: bool | None,
) -> Gram:
    """The Gram given, or that of the run given."""
    if isinstance(on, Gram):
        return on
    if not hasattr(on, "row_blocks"):
        raise FitError(f"a Run or a Gram is needed, not {type(on).__name__}")
    return compute(on, sites=sites, layers=layers, progress=progress)


@dataclass(frozen=True)
class _Solved:
    """Maps of one source."""

    matrices: Mapping[int, np.ndarray]
    rank: int
    condition: float
    method: str


class _Problem:
    """The moments with what is asked of them."""

    def __init__(self, moments: Gram, ridge: float, intercept: bool) -> None:
        self.gram = moments
        self.ridge = ridge
        self.intercept = intercept
        self.keys = moments.layers
        self.means = [moments.mean(key) for key in self.keys]
        self.eps = float(np.finfo(moments.provenance["precision"]).eps)
        self.safe = SAFE[moments.provenance["precision"]]

    def bias(self, source: int, target: int, matrix: np.ndarray) -> np.ndarray:
        """ȳ − x̄ A."""
        return np.asarray(self.means[target] - self.means[source] @ matrix)

    def moments(self, a: int, b: int, *, centred: bool) -> np.ndarray:
        return self.gram.cross(self.keys[a], self.keys[b], centred=centred)

    def solve(self, source: int, targets: Sequence[int]) -> _Solved:
        """The maps from one source, the quickest way that is safe."""
        found = self._by_cholesky(source, targets, self.safe)
        if found is None and self.gram.run is not None:
            means = dict(enumerate(self.means)) if self.intercept else None
            rows = SourceRows(self.gram.run, self.gram.columns, means)
            return _Solved(*solve_rows(rows, source, targets, self.ridge), "svd")
        if found is None:
            width = self.gram.columns[source].width
            found = self._by_cholesky(source, targets, 1 / (self.eps * width))
        return found or self._by_eigenvalues(source, targets)

    def _by_cholesky(self, source: int, targets: Sequence[int], limit: float) -> _Solved | None:
        """Full rank. Without an intercept the centred moments C are solved all the same, and
        the mean's part put back by Sherman and Morrison's formula,
        (C + αI + n μμᵀ)⁻¹ = P − n w wᵀ / (1 + n μᵀw), P = (C + αI)⁻¹, w = P μ: a large mean would
        cost the digits otherwise."""
        n, width = self.gram.n, self.gram.columns[source].width
        if n > width or self.ridge > 0:
            inverse = invert(self.moments(source, source, centred=True), self.ridge, limit)
            if inverse is not None:
                matrices = {t: self._centred(inverse, source, t) for t in targets}
                return _Solved(matrices, width, inverse.condition, "cholesky")
        if self.intercept or (n < width and self.ridge == 0):
            return None
        inverse = invert(self.moments(source, source, centred=False), self.ridge, limit)
        if inverse is None:
            return None
        matrices = {t: inverse.matrix @ self.moments(source, t, centred=False) for t in targets}
        return _Solved(matrices, width, inverse.condition, "cholesky")

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
        return _Solved(matrices, found.rank, found.condition, "eigh")


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
