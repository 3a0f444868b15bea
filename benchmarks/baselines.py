"""What people run pair by pair to fit a map and score it, each from rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from threadpoolctl import threadpool_limits

from benchmarks.harness import Measured, measure

Rows = Sequence[np.ndarray]
"""Source and target rows to fit on, source and target rows to score on."""


def by_numpy(rows: Rows) -> np.ndarray:
    """``numpy.linalg.lstsq``, by SVD."""
    x, y, x_held, y_held = rows
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    return r2(y_held, x_held @ solution)


def by_scikit_learn(rows: Rows) -> np.ndarray:
    """As the code of "Jump to Conclusions" (arXiv 2303.09435) does it."""
    x, y, x_held, y_held = rows
    model = LinearRegression(fit_intercept=False).fit(x, y)
    return np.asarray(r2_score(y_held, model.predict(x_held), multioutput="raw_values"))


def by_torch(rows: Rows) -> np.ndarray:
    """``torch.linalg.lstsq`` with its CPU driver of choice for full rank or less, gelsy."""
    x, y, x_held, y_held = (torch.from_numpy(one) for one in rows)
    solution = torch.linalg.lstsq(x, y, driver="gelsy").solution
    return r2(y_held.numpy(), (x_held @ solution).numpy())


def r2(truth: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(width,) r² of each coordinate."""
    left = ((truth - found) ** 2).sum(axis=0)
    return np.asarray(1 - left / ((truth - truth.mean(axis=0)) ** 2).sum(axis=0))


@dataclass(frozen=True)
class Way:
    """One of them, and what is asked of ours beside it.

    Attributes
    ----------
    dtype : str
        Of the rows.
    goal : float
        How many times quicker ours is to be.
    """

    call: Callable[[Rows], np.ndarray]
    dtype: str
    goal: float


WAYS = {
    "numpy lstsq float64": Way(by_numpy, "float64", 15),
    "scikit-learn float64": Way(by_scikit_learn, "float64", 25),
    "torch gelsy float64": Way(by_torch, "float64", 10),
    "scikit-learn float32": Way(by_scikit_learn, "float32", 8),
}


def measure_pair(name: str, rows: Rows) -> Measured:
    """One pair, the quicker of BLAS's own threads and a single one, which wins on a busy
    machine."""
    way = WAYS[name]
    given = [one.astype(way.dtype) for one in rows]
    found = []
    for threads in (None, 1):
        with threadpool_limits(threads, user_api="blas"):
            found.append(measure(name, lambda: way.call(given)))
    best = min(found, key=lambda measured: measured.seconds)
    cpu = min(one.cpu_seconds for one in found)
    return Measured(name, best.seconds, best.peak_bytes, best.result, cpu)
