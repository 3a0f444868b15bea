"""Rows whose least squares is hard, and how far r² is from float64 SVD's."""

from __future__ import annotations

import numpy as np

from actstore.fitting import fit
from actstore.grams import Gram
from tests.grams.gram_fakes import MemoryRun

CONDITIONS = [1e1, 1e3, 1e5, 1e7, 1e9]


def adversarial(
    condition: float, massive: bool, n: int = 3000, width: int = 24
) -> tuple[MemoryRun, MemoryRun]:
    """Two layers, to train on and to test on: a mean of ten times the spread, a column 1,000 times
    the rest, a spectrum of this condition, and where asked for three rows of 10,000 times."""
    rng = np.random.default_rng(int(np.log10(condition)) + massive)
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0]
    free = rng.standard_normal((2 * n, width))
    x = (free * np.logspace(0, -np.log10(condition), width)) @ turn
    y = x @ rng.standard_normal((width, width)) + np.tanh(free @ turn)
    y += 0.3 * rng.standard_normal((2 * n, width))
    if massive:
        rows = np.r_[rng.choice(n, 3, replace=False), n + rng.choice(n, 3, replace=False)]
        for z in (x, y):
            z[rows] += 1e4 * rng.standard_normal(width) * rng.uniform(0.5, 2, (6, 1))
    for z in (x, y):
        z += 10 * z.std(axis=0)
    x[:, 5] *= 1000
    y[:, 7] *= 1000
    train, test = (
        MemoryRun({"resid": {0: x[part], 1: y[part]}}, shard_rows=1000, corpus=name)
        for name, part in (("train", slice(n)), ("test", slice(n, 2 * n)))
    )
    return train, test


def r2_of(matrix: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(width,) 1 − SSE/SST from the rows."""
    errors = ((y - x @ matrix) ** 2).sum(axis=0)
    return np.asarray(1 - errors / ((y - y.mean(axis=0)) ** 2).sum(axis=0))


def errors_of(
    train: MemoryRun, test: MemoryRun, fitted_on: Gram, scored_on: Gram
) -> dict[tuple[int, int], tuple[float, float]]:
    """Largest |Δr²| of any coordinate by pair, beside SSE/SST where that is above 1, on the rows
    of the fit and on others, of what comes from Grams beside float64 `numpy.linalg.lstsq`."""
    maps = fit(fitted_on)
    tables = [maps.r2(g, average=None) for g in (fitted_on, scored_on)]
    found = {}
    for i, j in maps:
        x, y, u, v = (
            run.arrays["resid"][k].astype(np.float64) for run in (train, test) for k in (i, j)
        )
        best, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
        if rank == x.shape[1]:
            # Columns scaled alike: the same solution, with fewer digits lost by the reference.
            scale = np.sqrt((x**2).sum(axis=0))
            best = np.linalg.lstsq(x / scale, y, rcond=None)[0] / scale[:, None]
        expected = r2_of(best, x, y), r2_of(best, u, v)
        ours = (table.sel(source=i, target=j).values for table in tables)
        first, second = (
            float((np.abs(a - b) / np.maximum(1 - b, 1)).max())
            for a, b in zip(ours, expected, strict=True)
        )
        found[i, j] = first, second
    return found
