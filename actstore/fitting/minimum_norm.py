"""Minimum-norm least squares from the rows themselves, in memory that they do not fill.

With X = U S Vᵀ, cut off at ε·max(n, d)·σ₁ as `numpy.linalg.lstsq` does, the solution of smallest
norm is A = V S⁻¹ UᵀY, and V S (S² + αI)⁻¹ UᵀY with a ridge α.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from actstore.grams.columns import Columns
from actstore.grams.source import RowSource

BLOCK_ROWS = 4096


class SourceRows:
    """Rows of one source layer and its targets, less a mean, read as often as needed.

    Parameters
    ----------
    run : RowSource
    columns : Columns
    means : mapping from column number to (width,) float64, or None
        Subtracted; None leaves the rows as they are.
    weights : (n_samples,) float64, optional
        Rows are multiplied by their roots.
    """

    def __init__(
        self,
        run: RowSource,
        columns: Columns,
        means: Mapping[int, np.ndarray] | None,
        weights: np.ndarray | None = None,
    ) -> None:
        self.run = run
        self.columns = columns
        self.means = means
        self.roots = None if weights is None else np.sqrt(weights)

    def blocks(self, wanted: Sequence[int]) -> Iterator[list[np.ndarray]]:
        """(rows, width) float64 of each wanted column, block by block."""
        for block in self.run.row_blocks(BLOCK_ROWS):
            yield [self._read(k, block) for k in wanted]

    def _read(self, k: int, block: Any) -> np.ndarray:
        column = self.columns[k]
        values = self.run.read(column.site, column.layer, block).astype(np.float64)
        if self.means is not None:
            values -= self.means[k]
        if self.roots is not None:
            values *= self.roots[block.out, None]
        return values


def solve_rows(
    rows: SourceRows, source: int, targets: Sequence[int], ridge: float
) -> tuple[dict[int, np.ndarray], int, float, float]:
    """Minimum-norm maps from one source to its targets, in two passes over the rows.

    The first pass reduces X to a triangle R by QR, whose singular values and right vectors are
    X's. The second forms U = X V S⁻¹ block by block; as rounding leaves it only nearly
    orthonormal, UᵀU is kept too and solved against, which restores the digits.

    Parameters
    ----------
    rows : SourceRows
    source : int
    targets : sequence of int
    ridge : float

    Returns
    -------
    matrices : dict from target to (width source, width target) float64
    rank : int
    condition : float
        σ₁ over the smallest singular value kept.
    freedom : float
        Σ σ²/(σ² + α) over the singular values kept.
    """
    width = rows.columns[source].width
    triangle: np.ndarray = np.empty((0, width))
    for (x,) in rows.blocks([source]):
        triangle = np.concatenate([triangle, x])
        if len(triangle) > width:
            triangle = np.asarray(np.linalg.qr(triangle, mode="r"))
    _, values, right = np.linalg.svd(triangle, full_matrices=False)
    cutoff = np.finfo(float).eps * max(rows.run.n_samples, width) * values[0]
    rank = int((values > cutoff).sum())
    if rank == 0:
        zeros = {t: np.zeros((width, rows.columns[t].width)) for t in targets}
        return zeros, 0, float("inf"), 0.0
    values, basis = values[:rank], right[:rank].T
    whitener = basis / values
    inner = np.zeros((rank, rank))
    projected = {t: np.zeros((rank, rows.columns[t].width)) for t in targets}
    for x, *ys in rows.blocks([source, *targets]):
        unit = x @ whitener
        inner += unit.T @ unit
        for target, y in zip(targets, ys, strict=True):
            projected[target] += unit.T @ y
    back = basis * (values / (values**2 + ridge))
    matrices = {t: back @ np.linalg.solve(inner, projected[t]) for t in targets}
    freedom = float((values**2 / (values**2 + ridge)).sum())
    return matrices, rank, float(values[0] / values[-1]), freedom
