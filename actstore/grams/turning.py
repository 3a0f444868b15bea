"""Products with triangular matrices, in bands: little more than half of the operations.

Made of ordinary products, which run beside those of other threads; BLAS's own triangular ones, as
scipy gives them, hold Python's lock.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.linalg import lapack

BANDS = 8
NARROWEST = 64


def bands(width: int) -> list[slice]:
    """A triangle's columns in up to eight bands, none too narrow for a product."""
    count = max(1, min(BANDS, width // NARROWEST))
    cuts = [width * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(cuts)]


class Turn:
    """Products with a square matrix T.

    Parameters
    ----------
    matrix : (d, d) float64
        Upper triangular where it comes from a factorisation; any other will do.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self._matrix = np.ascontiguousarray(matrix)
        self._triangular = matrix.size > 0 and not np.tril(matrix, -1).any()
        width = len(matrix)
        # Each band of columns, and the rows that it has.
        self._bands = [(band, band.stop) for band in bands(width)]
        if not self._triangular:
            self._bands = [(slice(0, width), width)]

    def inverse(self) -> Turn:
        """That of T⁻¹."""
        if not self._triangular:
            return Turn(np.linalg.inv(self._matrix))
        found, singular = lapack.dtrtri(self._matrix.T, lower=1)
        if singular:
            raise np.linalg.LinAlgError("a whitening's basis has a zero on its diagonal")
        return Turn(found.T)

    def rows(self, values: np.ndarray, out: np.ndarray) -> None:
        """``out ← values T``, (n, d); `values` themselves may be `out`."""
        for band, stop in reversed(self._bands):
            out[:, band] = values[:, :stop] @ self._matrix[:stop, band]

    def moments(self, values: np.ndarray) -> None:
        """``values ← Tᵀ values``, (d, n) float64."""
        for band, stop in reversed(self._bands):
            values[band] = self._matrix[:stop, band].T @ values[:stop]
