"""Squared errors of maps on any rows, from the rows' Gram alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from actstore.errors import FitError
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.quadratic import FactoredMoments, Moments, Quadratic
from actstore.grams.columns import Columns
from actstore.grams.statistics import Gram

# An error this small beside the coordinate's mean is rounding: the coordinate is met exactly.
ROUNDING = 1e-13
# Moments say r² to within about ε Σ (Aᵢ sᵢ)² / SST, s the columns' spread: a map of large entries
# that cancel, as of ill-conditioned sources, is scored on the rows beyond this.
ROUGH = 1e-7 / 16
BLOCK_ROWS = 4096


def squared_errors(
    matrix: np.ndarray, bias: np.ndarray | None, rows: Moments | FactoredMoments
) -> np.ndarray:
    """(e,) float64: Σ(y − xA − b)² of each target coordinate.

    SSE = diag(Cyy) − 2 diag(AᵀCxy) + diag(AᵀCxxA) + n (ȳ − x̄A − b)², C centred: no digits are
    lost to a large mean. What is rounding beside the mean is given as zero.
    """
    residual = rows.mean_y - rows.mean_x @ matrix
    if bias is not None:
        residual -= bias
    sse = np.maximum(rows.total - rows.gained(matrix), 0.0) + rows.n * residual**2
    return np.where(sse > rows.n * (ROUNDING * rows.mean_y) ** 2, sse, 0.0)


def uncertain(weighed: np.ndarray, total: np.ndarray, eps: float) -> bool:
    """Whether moments leave a map's r² uncertain by `ROUGH`, from its Σ (Aᵢ sᵢ)²."""
    return bool((eps * weighed > ROUGH * total)[total > 0].any())


def rows_errors(
    gram: Gram, source: int, maps: Mapping[int, LinearMap], places: Mapping[int, int]
) -> dict[int, np.ndarray]:
    """Σ w (y − xA − b)² from the rows themselves, by target.

    Parameters
    ----------
    gram : Gram
        Whose run is at hand.
    source : int
        Place among the Gram's columns.
    maps : mapping from target to LinearMap
    places : mapping from target to place among the Gram's columns
    """
    run = gram.run
    assert run is not None
    found = {target: np.zeros(linear.matrix.shape[1]) for target, linear in maps.items()}
    for block in run.row_blocks(BLOCK_ROWS):
        x, *ys = (
            run.read(gram.columns[k].site, gram.columns[k].layer, block).astype(np.float64)
            for k in (source, *(places[target] for target in maps))
        )
        for (target, linear), y in zip(maps.items(), ys, strict=True):
            y -= x @ linear.matrix
            if linear.bias is not None:
                y -= linear.bias
            y *= y
            found[target] += y.sum(axis=0) if gram.weights is None else gram.weights[block.out] @ y
    return found


class Evaluation:
    """The moments of evaluation rows, by the maps' own column numbers.

    What the moments leave uncertain is found from the rows where they are at hand, and told by
    `warn` otherwise.

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
        self.rough: set[tuple[int, int]] = set()
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

    def factored(self, source: int, target: int, inner: Quadratic) -> FactoredMoments:
        """Of one pair, whose source's `inner` is at hand."""
        x, y = self._keys[source], self._keys[target]
        return FactoredMoments(
            self.gram.n,
            inner,
            self.gram.shifted(x, y),
            self.gram.offset(x),
            self.gram.offset(y),
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
        inner = Quadratic(self.inner(source))
        found, rough = {}, {}
        for target in targets:
            fitted = maps.at((source, target))
            matrix = fitted.matrix.astype(np.float64, copy=False)
            rows = self.factored(source, target, inner)
            found[target] = squared_errors(matrix, fitted.bias, rows)
            if self.doubts(inner.weighed(matrix), rows.total):
                rough[target] = fitted
        if rough and self.gram.run is not None:
            place = {k: self.gram.columns.index(key) for k, key in self._keys.items()}
            return found | rows_errors(self.gram, place[source], rough, place)
        self.rough |= {(source, target) for target in rough}
        return found

    def doubts(self, weighed: np.ndarray, total: np.ndarray) -> bool:
        """Whether a map's r² cannot be told from these moments, by its Σ (Aᵢ sᵢ)²; of float32
        products, which are flagged as such, none is doubted."""
        if self.gram.precision == "float32":
            return False
        return uncertain(weighed, total, self.gram.eps)

    def warn(self, *others: Evaluation) -> None:
        """One line for the pairs whose errors the moments alone could not settle."""
        rough = sorted(self.rough.union(*(other.rough for other in others)))
        if rough:
            keys = self.columns.keys()
            shown = ", ".join(f"{keys[i]} → {keys[j]}" for i, j in rough[:5])
            more = f" and {len(rough) - 5} more" if len(rough) > 5 else ""
            warnings.warn(
                f"the maps {shown}{more} have entries so large that a Gram alone does not tell "
                "their errors to full accuracy: give the run, so that its rows can be used",
                stacklevel=4,
            )


def check_model(provenance: dict, rows: Gram) -> None:
    """FitError where maps and rows come from models of different weights."""
    ours, theirs = (p.get("model_fingerprint") for p in (provenance, rows.provenance))
    if ours and theirs and ours != theirs:
        raise FitError(
            f"the maps were fitted on {provenance['model']} and the rows come from "
            f"{rows.model}, which has other weights"
        )
