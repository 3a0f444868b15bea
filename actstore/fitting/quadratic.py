"""Quadratic and bilinear forms of many maps, column by column, in as few passes as they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, lapack

from actstore.grams.turning import bands

# Rows at a time of a product whose two sides lie in memory in different orders.
BAND = 64


class Quadratic:
    """diag(AᵀCA) and diag(Aᵀ diag(C) A) of one positive semidefinite C and many A.

    Where C has a Cholesky factor L the first is the column norms of LᵀA: little more than half of
    the operations of CA.

    Parameters
    ----------
    inner : (d, d) float64
    """

    def __init__(self, inner: np.ndarray) -> None:
        self.inner = inner
        self._factor: np.ndarray | None = None
        if inner.size:
            factor, failed = lapack.dpotrf(inner.T, lower=1)
            self._factor = None if failed else np.ascontiguousarray(factor.T)
        self._room = np.empty(0)

    def squares(self, matrix: np.ndarray) -> np.ndarray:
        """(e,) diag(AᵀCA) of (d, e) A."""
        product = self._product(matrix.shape)
        if self._factor is None or not matrix.size:
            np.matmul(self.inner, matrix, out=product)
            return np.einsum("ij,ij->j", matrix, product)
        for band in bands(len(matrix)):
            right = self._factor[band, band.start :]
            np.matmul(right, matrix[band.start :], out=product[band])
        return np.einsum("ij,ij->j", product, product)

    def weighed(self, matrix: np.ndarray) -> np.ndarray:
        """(e,) Σᵢ Aᵢ² Cᵢᵢ."""
        squares = np.square(matrix, out=self._product(matrix.shape))
        return np.diagonal(self.inner) @ squares

    def _product(self, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape))
        if self._room.size < size:
            self._room = np.empty(size)
        return self._room[:size].reshape(shape)


def along(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(e,) Σᵢ aᵢⱼ bᵢⱼ of two (d, e), the second perhaps a transposed view."""
    found = np.zeros(a.shape[1])
    for start in range(0, len(a), BAND):
        rows = slice(start, start + BAND)
        found += np.einsum("ij,ij->j", a[rows], b[rows])
    return found


def add_outer(matrix: np.ndarray, scale: float, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A + scale u vᵀ, in A's own memory where that is contiguous."""
    if not matrix.size:
        return matrix
    return np.asarray(blas.dger(scale, v, u, a=matrix.T, overwrite_a=1).T)


@dataclass(frozen=True)
class Moments:
    """What a pair's errors on some rows need of them.

    Attributes
    ----------
    n : float
    inner : (d, d) float64
        Centred XᵀX.
    cross : (d, e) float64
        Centred XᵀY.
    total : (e,) float64
        Σ(y − ȳ)².
    mean_x, mean_y : (d,), (e,) float64
    """

    n: float
    inner: np.ndarray
    cross: np.ndarray
    total: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray

    def gained(self, matrix: np.ndarray) -> np.ndarray:
        """(e,) what A takes off the error: diag(2 AᵀCxy − AᵀCxxA)."""
        inside = self.inner @ matrix
        inside -= 2 * self.cross
        return -np.einsum("ij,ij->j", matrix, inside)


@dataclass(frozen=True)
class FactoredMoments:
    """The same for many maps of one source: nothing is copied, C factorised once.

    Attributes
    ----------
    n : float
    inner : Quadratic
        Of the centred XᵀX.
    shifted : (d, e) float64
        XᵀY about the Gram's shift.
    offset_x, offset_y : (d,), (e,) float64
        The means, less the shift.
    total : (e,) float64
    mean_x, mean_y : (d,), (e,) float64
    """

    n: float
    inner: Quadratic
    shifted: np.ndarray
    offset_x: np.ndarray
    offset_y: np.ndarray
    total: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray

    def gained(self, matrix: np.ndarray) -> np.ndarray:
        """As of `Moments`."""
        products = along(matrix, self.shifted) - self.n * (self.offset_x @ matrix) * self.offset_y
        return 2 * products - self.inner.squares(matrix)
