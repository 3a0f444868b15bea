"""Squared errors of maps on any rows, from the rows' Gram alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actstore.errors import FitError
from actstore.fitting.maps import MapSet
from actstore.grams.columns import Columns
from actstore.grams.statistics import Gram

# An error this small beside the coordinate's mean is rounding: the coordinate is met exactly.
ROUNDING = 1e-13


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


def squared_errors(matrix: np.ndarray, bias: np.ndarray | None, rows: Moments) -> np.ndarray:
    """(e,) float64: Σ(y − xA − b)² of each target coordinate.

    SSE = diag(Cyy) − 2 diag(AᵀCxy) + diag(AᵀCxxA) + n (ȳ − x̄A − b)², C centred: no digits are
    lost to a large mean. What is rounding beside the mean is given as zero.
    """
    inside = rows.inner @ matrix
    inside -= 2 * rows.cross
    residual = rows.mean_y - rows.mean_x @ matrix
    if bias is not None:
        residual -= bias
    sse = rows.total + np.einsum("ij,ij->j", matrix, inside)
    sse = np.maximum(sse, 0.0) + rows.n * residual**2
    return np.where(sse > rows.n * (ROUNDING * rows.mean_y) ** 2, sse, 0.0)


class Evaluation:
    """The moments of evaluation rows, by the maps' own column numbers.

    Raises
    ------
    FitError
        The rows are of another model or width.
    SiteError
        A layer that the rows do not have.
    """

    def __init__(self, columns: Columns, rows: Gram, provenance: dict | None = None) -> None:
        check_model(provenance or {}, rows)
        self.columns = columns
        self.gram = rows
        self._keys = {}
        for k, column in enumerate(columns):
            place = rows.columns.index(column)
            if column.width != rows.columns[place].width:
                raise FitError(
                    f"{column} has {column.width} features in the maps and "
                    f"{rows.columns[place].width} in {rows!r}"
                )
            self._keys[k] = rows.layers[place]

    def moments(self, source: int, target: int, inner: np.ndarray | None = None) -> Moments:
        """Of one pair; `inner` where it is at hand already."""
        x, y = self._keys[source], self._keys[target]
        return Moments(
            self.gram.n,
            self.inner(source) if inner is None else inner,
            self.gram.cross(x, y, centred=True),
            self.gram.variance(y),
            self.gram.mean(x),
            self.gram.mean(y),
        )

    def inner(self, source: int) -> np.ndarray:
        """(d, d) centred XᵀX."""
        x = self._keys[source]
        return self.gram.cross(x, x, centred=True)

    def mean(self, k: int) -> np.ndarray:
        """(width,) mean of one column block."""
        return self.gram.mean(self._keys[k])

    def total(self, target: int) -> np.ndarray:
        """(width,) Σ(y − ȳ)²."""
        return self.gram.variance(self._keys[target])

    def errors(self, maps: MapSet, source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        """Squared errors of the maps from one source, by target."""
        inner = self.inner(source)
        found = {}
        for target in targets:
            fitted = maps.at((source, target))
            matrix = fitted.matrix.astype(np.float64, copy=False)
            found[target] = squared_errors(matrix, fitted.bias, self.moments(source, target, inner))
        return found


def check_model(provenance: dict, rows: Gram) -> None:
    """FitError where maps and rows come from models of different weights."""
    ours, theirs = (p.get("model_fingerprint") for p in (provenance, rows.provenance))
    if ours and theirs and ours != theirs:
        raise FitError(
            f"the maps were fitted on {provenance['model']} and the rows come from "
            f"{rows.model}, which has other weights"
        )
