"""Rows in other coordinates, and moments back: by a triangular matrix at half of the operations."""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack


class Turn:
    """Products with a square matrix T, in place.

    Parameters
    ----------
    matrix : (d, d) float64
        Upper triangular where it comes from a factorisation; any other will do.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self._matrix = np.ascontiguousarray(matrix)
        self._triangular = matrix.size > 0 and not np.tril(matrix, -1).any()

    def inverse(self) -> Turn:
        """That of T⁻¹."""
        if not self._triangular:
            return Turn(np.linalg.inv(self._matrix))
        found, singular = lapack.dtrtri(self._matrix.T, lower=1)
        if singular:
            raise np.linalg.LinAlgError("a whitening's basis has a zero on its diagonal")
        return Turn(found.T)

    def rows(self, values: np.ndarray) -> None:
        """``values ← values T``, (n, d) float64 of contiguous rows."""
        if not self._triangular or not values.size:
            values[:] = values @ self._matrix
            return
        # Of transposed views, which are what Fortran takes for its own: (XT)ᵀ = TᵀXᵀ.
        blas.dtrmm(1.0, self._matrix.T, values.T, side=0, lower=1, overwrite_b=1)

    def moments(self, values: np.ndarray) -> None:
        """``values ← Tᵀ values``, (d, n) float64 of contiguous rows."""
        if not self._triangular or not values.size:
            values[:] = self._matrix.T @ values
            return
        blas.dtrmm(1.0, self._matrix.T, values.T, side=1, lower=1, trans_a=1, overwrite_b=1)
