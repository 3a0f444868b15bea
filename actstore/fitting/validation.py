"""Cross-validation over parts of a Gram: every fold's rows are left out by subtraction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from actstore.fitting.inputs import as_gram, ridge_values
from actstore.fitting.ridge import RidgePath, warn_of
from actstore.fitting.squared_errors import Evaluation
from actstore.fitting.tables import attributes, check_average, every_pair, r2_values, tabulate
from actstore.grams.pairs import layers_of, resolve_pairs
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram

FOLDS = 5


def cross_validate(
    on: Gram | RowSource,
    ridges: Iterable[float] = (0.0,),
    *,
    pairs: str | Iterable[Any] = "all",
    intercept: bool = False,
    average: str | None = "uniform",
    folds: int = FOLDS,
    progress: bool | None = None,
) -> xr.DataArray:
    """r² of maps on rows that they were not fitted on, for every α and pair.

    Each part is left out in turn: maps are fitted on the others' Gram and scored on its own. SSE is
    summed over the parts, and SST is about the mean of all rows, so that parts of any size and
    kind count by their rows. No activation is read again.

    Parameters
    ----------
    on : Gram with parts, or Run
    ridges : iterable of float
        α ≥ 0.
    pairs, intercept
        As for `fit`.
    average : {"uniform", "variance", None}
        As for `r2`.
    folds : int
        That a run's documents are dealt out to; a Gram has its own parts.
    progress : bool, optional

    Returns
    -------
    DataArray (ridge, source, target), or (ridge, source, target, feature) without average

    Raises
    ------
    FitError
        A Gram without parts, or as for `fit`.
    """
    check_average(average)
    values = ridge_values(ridges)
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    moments = as_gram(on, None, layers_of(pairs), progress, folds, pairs=pairs)
    places = resolve_pairs(moments.columns, pairs)
    return _validated(moments, values, places, intercept, average)


def choose_ridges(
    moments: Gram,
    ridges: Sequence[float],
    places: Sequence[tuple[int, int]],
    intercept: bool,
    progress: bool | None,
) -> dict[tuple[int, int], float]:
    """The α of highest cross-validated r², variance-weighted, for each pair of places; the larger
    of equals."""
    scores = _validated(moments, ridges, places, intercept, "variance")
    rows, cols = sorted({i for i, _ in places}), sorted({j for _, j in places})
    table = scores.values[::-1]
    backwards = list(ridges)[::-1]
    return {
        (i, j): backwards[int(np.argmax(table[:, rows.index(i), cols.index(j)]))] for i, j in places
    }


def _validated(
    moments: Gram,
    ridges: Sequence[float],
    places: Sequence[tuple[int, int]],
    intercept: bool,
    average: str | None,
) -> xr.DataArray:
    columns = moments.columns
    sums: dict[tuple[int, int], np.ndarray] = {}
    rough: set[int] = set()
    scored = []
    for number, part in enumerate(moments.parts):
        path = RidgePath(moments.without(number), ridges, places, intercept)
        scored.append(Evaluation(columns, part))
        errors = every_pair(places, partial(path.errors, scored[-1]))
        rough |= path.rough(ridges)
        sums = {place: sums.get(place, 0.0) + sse for place, sse in errors.items()}
    whole = Evaluation(columns, moments)
    warn_of(rough, columns)
    whole.warn(*scored)

    def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        return {t: r2_values(sums[source, t], whole.total(t), average) for t in targets}

    trailing = "feature" if average is None else None
    result = tabulate(columns, places, values, "r2", {"ridge": ridges}, trailing=trailing)
    result.attrs = attributes(
        "cross-validated coefficient of determination",
        {"intercept": intercept},
        moments,
        average=average or "none",
        folds=len(moments.parts),
    )
    return result
