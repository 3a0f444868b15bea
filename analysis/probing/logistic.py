"""Logistic probes by scikit-learn; one layer's rows are held in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import MissingDependencyError

if TYPE_CHECKING:
    from actstore.store import Run

Floats = NDArray[np.float64]


def require() -> Any:
    """`sklearn.linear_model`; MissingDependencyError where scikit-learn is not installed."""
    try:
        from sklearn import linear_model
    except ImportError as error:
        raise MissingDependencyError(
            "method='logistic' needs scikit-learn: pip install 'actstore[probes]', "
            "or take method='ridge'"
        ) from error
    return linear_model


def read_layer(run: Run, site: str, layer: int) -> Floats:
    """(n_samples, width) float64 rows of one layer."""
    rows = np.empty((run.n_samples, run.width(site)))
    for block in run.row_blocks(4096):
        rows[block.out] = run.read(site, layer, block)
    return rows


def cross_validated(
    rows: Floats,
    folds: NDArray[np.intp],
    codes: NDArray[np.intp],
    ridges: Sequence[float],
    standardise: bool,
    iterations: int,
) -> tuple[NDArray[np.int32], list[float]]:
    """Predictions of each sample by the classifier of the other folds, and each fold's α = 1/C.

    Of several α each outer fold takes the one of least log loss in an inner cross-validation over
    its training folds.
    """
    found = np.empty(len(rows), np.int32)
    chosen = []
    n_folds = int(folds.max()) + 1
    for fold in range(n_folds):
        train = folds != fold
        ridge = ridges[0]
        if len(ridges) > 1:
            losses = [
                sum(
                    _loss(
                        rows,
                        codes,
                        train & (folds != inner),
                        folds == inner,
                        ridge,
                        standardise,
                        iterations,
                    )
                    for inner in range(n_folds)
                    if inner != fold
                )
                for ridge in ridges
            ]
            ridge = ridges[int(np.argmin(losses))]
        model, scaled = _fitted(rows, codes, train, ridge, standardise, iterations)
        found[~train] = model.predict(scaled(rows[~train]))
        chosen.append(float(ridge))
    return found, chosen


def _fitted(
    rows: Floats,
    codes: NDArray[np.intp],
    train: NDArray[np.bool_],
    ridge: float,
    standardise: bool,
    iterations: int,
) -> tuple[Any, Any]:
    mean, spread = rows[train].mean(axis=0), rows[train].std(axis=0)
    constant = spread <= 1e-6 * np.abs(mean)
    scale = np.where(constant, 1.0, spread) if standardise else np.ones_like(spread)

    def scaled(values: Floats) -> Floats:
        return np.asarray(np.where(constant, 0.0, (values - mean) / scale))

    model = require().LogisticRegression(C=1 / ridge, max_iter=iterations)
    return model.fit(scaled(rows[train]), codes[train]), scaled


def _loss(
    rows: Floats,
    codes: NDArray[np.intp],
    train: NDArray[np.bool_],
    judge: NDArray[np.bool_],
    ridge: float,
    standardise: bool,
    iterations: int,
) -> float:
    """−Σ ln p(class) of some samples; a class that was not trained on costs as 1e-15."""
    model, scaled = _fitted(rows, codes, train, ridge, standardise, iterations)
    chances = model.predict_proba(scaled(rows[judge]))
    place = np.searchsorted(model.classes_, codes[judge])
    known = np.isin(codes[judge], model.classes_)
    each = np.where(
        known, chances[np.arange(len(chances)), np.minimum(place, len(model.classes_) - 1)], 0
    )
    return float(-np.log(np.maximum(each, 1e-15)).sum())
