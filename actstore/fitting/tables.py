"""Scores of all pairs in one labelled table, and how coordinates are averaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xarray as xr

from actstore.errors import FitError
from actstore.fitting.inputs import by_source, shared_out
from actstore.grams.columns import Columns
from actstore.grams.statistics import Gram
from actstore.grams.threads import available_cores, one_blas_thread

AVERAGES = ("uniform", "variance", None)
Values = Callable[[int, Sequence[int]], Mapping[int, np.ndarray]]


def r2_values(sse: np.ndarray, sst: np.ndarray, average: str | None) -> np.ndarray:
    """1 − SSE/SST over the last axis: each, their mean, or weighted by SST.

    Where SST is zero it is 1 if SSE is too and else 0, scikit-learn's rule.
    """
    if average == "variance":
        sse, sst = sse.sum(axis=-1), sst.sum(axis=-1)
    constant = sst == 0
    found = 1 - sse / np.where(constant, 1.0, sst)
    found = np.where(constant & ~np.isnan(sse), (sse == 0).astype(float), found)
    return found.mean(axis=-1) if average == "uniform" else found


def check_average(average: str | None, known: Sequence[str | None] = AVERAGES) -> None:
    """FitError for an average that is not known."""
    if average not in known:
        *names, last = map(repr, known)
        raise FitError(f"average={average!r} is not known: choose {', '.join(names)} or {last}")


def labels(columns: Columns) -> list[Any]:
    """Layer numbers, or ``site.layer`` where there are several sites."""
    return columns.keys() if len(columns.sites) == 1 else [str(column) for column in columns]


def every_pair(
    places: Sequence[tuple[int, int]], values: Values
) -> dict[tuple[int, int], np.ndarray]:
    """Values of all pairs; sources are shared out over threads.

    Parameters
    ----------
    values : callable
        Of one source and its targets: an array for each target.
    """
    shares = shared_out(by_source(places), available_cores())
    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        jobs = [(source, pool.submit(values, source, targets)) for source, targets in shares]
        return {
            (source, target): np.asarray(value)
            for source, job in jobs
            for target, value in job.result().items()
        }


def tabulate(
    columns: Columns,
    places: Sequence[tuple[int, int]],
    values: Values,
    name: str,
    leading: Mapping[str, Sequence[Any]] | None = None,
    *,
    trailing: str | None = None,
) -> xr.DataArray:
    """Put every pair's values in its place.

    Parameters
    ----------
    values : callable
        As for `every_pair`; arrays of the leading axes and, where `trailing` names one, a last
        axis whose length may differ between targets.

    Returns
    -------
    DataArray (*leading, source, target[, trailing])
        NaN for pairs that are not there.
    """
    leading = leading or {}
    found = every_pair(places, values)
    rows, cols = sorted({i for i, _ in places}), sorted({j for _, j in places})
    shape: tuple[int, ...] = (*map(len, leading.values()), len(rows), len(cols))
    if trailing is not None:
        shape += (max(value.shape[-1] for value in found.values()),)
    table = np.full(shape, np.nan)
    lead = (slice(None),) * len(leading)
    for (source, target), value in found.items():
        place: tuple[Any, ...] = (*lead, rows.index(source), cols.index(target))
        if trailing is not None:
            place += (slice(value.shape[-1]),)
        table[place] = value
    names = labels(columns)
    coords = {
        **{dim: list(entries) for dim, entries in leading.items()},
        "source": [names[k] for k in rows],
        "target": [names[k] for k in cols],
    }
    dims = (*leading, "source", "target", *([trailing] if trailing else []))
    return xr.DataArray(table, coords, dims, name=name)


def attributes(
    long_name: str, fitted: Mapping[str, Any], rows: Gram, **more: Any
) -> dict[str, Any]:
    """What a result says of itself: its meaning, its rows, and where both came from."""
    return {
        "long_name": long_name,
        **more,
        "model": rows.model,
        "evaluated_on": ", ".join(run["corpus"] for run in rows.provenance["runs"]),
        "n": rows.n,
        "provenance": json.dumps(
            {"maps": dict(fitted), "evaluation": rows.provenance}, ensure_ascii=False
        ),
    }
