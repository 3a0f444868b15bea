"""Pure kernels: from the moments of one source layer to what solves for any target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

# With κ the condition of the equilibrated XᵀX, its solution carries a relative error of κ·ε in
# whitened units, and r² its square, but for the part that a held-out sample sees to first
# order: 8e-11 was measured at κ = 2.6e10. float32 products have ε = 1.2e-7, and those of
# whitened rows lose as little to κ as float64's.
SAFE = {"float64": 1e10, "sketch": 1e10, "float32": 1e6}
# Raw moments have lost digits to the mean before they are factorised: where the rows are at hand,
# only the fraction RAW of that condition is taken for safe.
RAW = 1e-4
# Eigenvalues are trusted down to this fraction of the largest.
SPREAD = 1e12


@dataclass(frozen=True)
class Inverse:
    """A factorised source layer that serves every target.

    Attributes
    ----------
    matrix : (d, d) float64
        (M + αI)⁻¹.
    condition : float
        Estimated 2-norm condition number of the equilibrated design: √κ₁ of its moments.
    ridge : float
        α.
    """

    matrix: np.ndarray
    condition: float
    ridge: float

    @property
    def freedom(self) -> float:
        """tr(M (M + αI)⁻¹) = d − α tr((M + αI)⁻¹)."""
        return float(len(self.matrix) - self.ridge * np.trace(self.matrix))


def invert(moments: np.ndarray, ridge: float, limit: float) -> Inverse | None:
    """Inverse of a positive definite matrix by Cholesky, or None where that is not safe.

    The matrix is scaled to a unit diagonal first, which leaves a full-rank solution as it is and
    takes the columns' scales out of the condition number.

    Parameters
    ----------
    moments : (d, d) float64
    ridge : float
        Added to the diagonal before anything else.
    limit : float
        Largest 1-norm condition number of the scaled matrix.
    """
    diagonal = np.diagonal(moments) + ridge
    if not (diagonal > 0).all():
        return None
    scale = 1 / np.sqrt(diagonal)
    scaled = moments * scale
    scaled *= scale[:, None]
    np.fill_diagonal(scaled, 1.0)
    norm = float(np.abs(scaled).sum(axis=0).max())
    factor, failed = lapack.dpotrf(scaled.T, lower=1, overwrite_a=True)
    if failed:
        return None
    reciprocal, _ = lapack.dpocon(factor, norm, uplo="L")
    if reciprocal * limit < 1:
        return None
    half, failed = lapack.dpotri(factor, lower=1, overwrite_c=True)
    if failed:
        return None
    lower = np.tril(half)
    inverse = lower + np.tril(half, -1).T
    inverse *= scale
    inverse *= scale[:, None]
    return Inverse(np.ascontiguousarray(inverse), float(1 / np.sqrt(reciprocal)), ridge)


@dataclass(frozen=True)
class Spectrum:
    """The part of a symmetric matrix that stands above rounding.

    Attributes
    ----------
    vectors : (d, rank) float64
    values : (rank,) float64
        Decreasing, the ridge not in them.
    """

    vectors: np.ndarray
    values: np.ndarray

    @property
    def rank(self) -> int:
        """Number of values kept."""
        return len(self.values)

    @property
    def condition(self) -> float:
        """√(largest / smallest kept): the design's own, as the moments are its square."""
        return float(np.sqrt(self.values[0] / self.values[-1])) if self.rank else float("inf")

    def rough(self, ridge: float, rows: int) -> bool:
        """Whether what was taken for zero, or is next to it, may matter to the solution: fewer
        values than `rows` allow, or a condition above `SPREAD`, ridge and all."""
        if self.rank == 0:
            return False
        floor = (self.values[0] + ridge) / SPREAD
        lost = self.rank < min(rows, len(self.vectors)) and ridge < floor
        return bool(lost or self.values[-1] + ridge < floor)

    def freedom(self, ridge: float) -> float:
        """Σ λ/(λ + α)."""
        return float((self.values / (self.values + ridge)).sum())


def spectrum(moments: np.ndarray, eps: float) -> Spectrum:
    """Eigenvalues above ε·d of the largest, and their vectors.

    Not scaled to a unit diagonal: that would change which solution has the smallest norm.
    """
    values, vectors = np.linalg.eigh(moments)
    kept = values > eps * len(values) * max(values[-1], 0.0)
    return Spectrum(np.ascontiguousarray(vectors[:, kept][:, ::-1]), values[kept][::-1])
