"""Least squares from one source layer: a factorisation, the quickest that is safe, and its maps."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from actstore.fitting.maps import LinearMap
from actstore.fitting.minimum_norm import SourceRows, solve_rows
from actstore.fitting.quadratic import add_outer
from actstore.fitting.reduced_rank import reduce_rank
from actstore.fitting.solving import RAW, SAFE, Inverse, Spectrum, invert, spectrum
from actstore.grams.statistics import Gram


@dataclass(frozen=True)
class Factor:
    """What serves all targets of a source.

    Attributes
    ----------
    inverse : Inverse or None
        Of the moments.
    spectrum : Spectrum or None
        Of moments that have no safe inverse; where both are None the rows are solved from.
    centred : bool
        Whether those are the centred moments.
    """

    inverse: Inverse | None = None
    spectrum: Spectrum | None = None
    centred: bool = False


@dataclass(frozen=True)
class Solved:
    """Maps of one source."""

    matrices: Mapping[int, np.ndarray]
    rank: int
    condition: float
    freedom: float
    method: str


class Problem:
    """The moments with what is asked of them.

    Parameters
    ----------
    moments : Gram
    ridge : float
    intercept : bool
    """

    def __init__(self, moments: Gram, ridge: float, intercept: bool) -> None:
        self.gram = moments
        self.ridge = ridge
        self.intercept = intercept
        self.keys = moments.layers
        self.means = [moments.mean(key) for key in self.keys]
        self.safe = SAFE[moments.precision]

    def factor(self, source: int) -> Factor:
        """Of one source."""
        raw = self.safe * RAW if self.gram.run is not None else self.safe
        found = self._inverse(source, self.safe, raw)
        if found is None and self.gram.run is None:
            limit = 1 / (self.gram.eps * self.gram.columns[source].width)
            found = self._inverse(source, limit, limit)
            if found is None:
                moments = self._moments(source, source, centred=self.intercept)
                return Factor(spectrum=spectrum(moments, self.gram.eps), centred=self.intercept)
        return found or Factor()

    def _inverse(self, source: int, limit: float, raw: float) -> Factor | None:
        """Full rank. Without an intercept the centred moments C are solved all the same, and
        the mean's part put back by Sherman and Morrison's formula,
        (C + αI + n μμᵀ)⁻¹ = P − n w wᵀ / (1 + n μᵀw), P = (C + αI)⁻¹, w = P μ: a large mean would
        cost the digits otherwise."""
        n, width = self.gram.rows, self.gram.columns[source].width
        if n > width or self.ridge > 0:
            inverse = invert(self._moments(source, source, centred=True), self.ridge, limit)
            if inverse is not None:
                return Factor(inverse, centred=True)
        if self.intercept or (n < width and self.ridge == 0):
            return None
        inverse = invert(self._moments(source, source, centred=False), self.ridge, raw)
        return None if inverse is None else Factor(inverse)

    def solve(self, source: int, targets: Sequence[int], factor: Factor | None = None) -> Solved:
        """The maps from one source; its factor where that is at hand."""
        factor = factor or self.factor(source)
        if factor.inverse is not None:
            return self._by_inverse(source, targets, factor.inverse, factor.centred)
        if factor.spectrum is not None:
            return self._by_eigenvalues(source, targets, factor.spectrum)
        assert self.gram.run is not None
        means = dict(enumerate(self.means)) if self.intercept else None
        rows = SourceRows(self.gram.run, self.gram.columns, means, self.gram.weights)
        return Solved(*solve_rows(rows, source, targets, self.ridge), "svd")

    def _by_inverse(
        self, source: int, targets: Sequence[int], inverse: Inverse, centred: bool
    ) -> Solved:
        freedom = inverse.freedom
        if centred:
            matrices = {t: self._centred(inverse, source, t) for t in targets}
            freedom += self._mean_freedom(inverse, source)
        else:
            matrices = {
                t: inverse.matrix @ self._moments(source, t, centred=False) for t in targets
            }
        return Solved(matrices, len(inverse.matrix), inverse.condition, freedom, "cholesky")

    def _mean_freedom(self, inverse: Inverse, source: int) -> float:
        """What the mean's part, put back, adds: −α tr of the correction to (M + αI)⁻¹."""
        if self.intercept:
            return 0.0
        n, mean = self.gram.n, self.means[source]
        direction = inverse.matrix @ mean
        return float(self.ridge * n * (direction @ direction) / (1 + n * (mean @ direction)))

    def _centred(self, inverse: Inverse, source: int, target: int) -> np.ndarray:
        """P Cxy; Cxy is centred after the product, which takes no copy of it."""
        x, y, n = self.keys[source], self.keys[target], self.gram.n
        away = inverse.matrix @ self.gram.offset(x)
        matrix = add_outer(inverse.matrix @ self.gram.shifted(x, y), -n, away, self.gram.offset(y))
        if not self.intercept:
            mean = self.means[source]
            direction = inverse.matrix @ mean
            weight = n / (1 + n * (mean @ direction))
            matrix = add_outer(matrix, weight, direction, self._bias(source, target, matrix))
        return matrix

    def _by_eigenvalues(self, source: int, targets: Sequence[int], found: Spectrum) -> Solved:
        back = found.vectors / (found.values + self.ridge)
        matrices = {
            t: back @ (found.vectors.T @ self._moments(source, t, centred=self.intercept))
            for t in targets
        }
        freedom = found.freedom(self.ridge)
        return Solved(matrices, found.rank, found.condition, freedom, "eigh")

    def linear_map(self, source: int, target: int, found: Solved, rank: int | None) -> LinearMap:
        """One target's map, brought down to `rank` where that is asked for."""
        matrix = found.matrices[target]
        if rank is not None:
            cross = self._moments(source, target, centred=self.intercept)
            matrix = reduce_rank(matrix, cross, rank)
        return LinearMap(
            self.keys[source],
            self.keys[target],
            matrix,
            self._bias(source, target, matrix) if self.intercept else None,
            found.rank if rank is None else min(found.rank, rank),
            found.condition,
            found.method,
            found.freedom + self.intercept if rank is None else nan,
            self.ridge,
        )

    def warn(self, solved: Iterable[tuple[int, Solved]], stacklevel: int) -> None:
        """One line for what the moments alone could not settle to full accuracy."""
        if self.gram.run is not None:
            return
        rough = [
            self.keys[source]
            for source, found in sorted(solved, key=lambda item: item[0])
            if found.method == "eigh" or found.condition**2 > self.safe
        ]
        if rough:
            warnings.warn(
                f"source layers {', '.join(map(str, rough))} are too ill-conditioned for their "
                "Gram alone: their maps may be inexact; give the run, so that its rows can be used",
                stacklevel=stacklevel + 1,
            )

    def _bias(self, source: int, target: int, matrix: np.ndarray) -> np.ndarray:
        """ȳ − x̄ A."""
        return np.asarray(self.means[target] - self.means[source] @ matrix)

    def _moments(self, a: int, b: int, *, centred: bool) -> np.ndarray:
        return self.gram.cross(self.keys[a], self.keys[b], centred=centred)
