"""Means and proportions with intervals that know about clusters.

Sentences of one article resemble each other, so that 3,000 sentences from 400 articles hold
less information than 3,000 independent ones. Every interval here is cluster-robust: samples
that share a label count as dependent, in whatever way they are, and only clusters count as
independent. With one sample per cluster everything reduces to the textbook formulas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student_t

from actstore.errors import AnalysisError, NonFiniteError

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval, arrays of one shape."""

    value: Floats
    low: Floats
    high: Floats


def mean(values: ArrayLike, clusters: ArrayLike | None = None, *, level: float = 0.95) -> Interval:
    """Mean over the last axis with a cluster-robust Student t interval.

    The squared standard error is G/(G−1) · Σ_g (Σ_{i∈g} (x_i − x̄))² / n², and the quantile
    that of Student's t with G − 1 degrees of freedom (Cameron & Miller 2015, "A Practitioner's
    Guide to Cluster-Robust Inference", J. Human Resources 50, §II and §VI.D, for the regression
    on a constant). With singleton clusters this is s²/n and the usual t interval.

    Parameters
    ----------
    values : (..., n) array of numbers
        Samples on the last axis; leading axes are handled independently. Finite.
    clusters : (n,) array, optional
        Label of the cluster of each sample (numbers or strings); default: each its own.
    level : float
        Coverage of the interval, between 0 and 1.

    Returns
    -------
    Interval
        Three (...) float64 arrays. With a single cluster nothing is known about the spread
        between clusters, and the ends are NaN.

    Raises
    ------
    NonFiniteError
        A value is NaN or infinite.
    AnalysisError
        No samples, clusters of another length, or a level outside (0, 1).
    """
    array, codes, sizes = _checked(values, clusters, level)
    average = array.mean(axis=-1, dtype=np.float64)
    spread = _quantile(sizes, level) * _standard_error(array, average, codes, sizes)
    return Interval(average, average - spread, average + spread)


def proportion(
    hits: ArrayLike, clusters: ArrayLike | None = None, *, level: float = 0.95
) -> Interval:
    """Share of true values over the last axis with a cluster-robust Wilson interval.

    Wilson's score interval at the effective sample size n/deff, where the design effect deff is
    the squared cluster-robust standard error over the one of independent samples, p(1−p)/(n−1)
    (Korn & Graubard 1998, Survey Methodology 24; Franco et al. 2019, J. Survey Statistics and
    Methodology 7, who find Wilson's interval at the effective size the most reliable). As there,
    deff is never taken below 1, and the quantile is Student's with G − 1 degrees of freedom.
    Where the share is 0 or 1 the data say nothing about deff; then the largest possible one is
    used, Σ_g n_g² / n (clusters that are wholly alike), so that such an interval is not empty.

    Parameters
    ----------
    hits : (..., n) array of bool (or 0 and 1)
        Samples on the last axis; leading axes are handled independently.
    clusters, level
        As in `mean`.

    Returns
    -------
    Interval
        Three (...) float64 arrays, 0 ≤ low ≤ value ≤ high ≤ 1; ends are NaN with one cluster.

    Raises
    ------
    NonFiniteError, AnalysisError
        As in `mean`; also for values other than 0 and 1.
    """
    array, codes, sizes = _checked(hits, clusters, level)
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise AnalysisError("a proportion is of true and false values (0 and 1); use mean() here")
    n = array.shape[-1]
    share = array.mean(axis=-1, dtype=np.float64)
    independent = share * (1 - share) / max(n - 1, 1)
    clustered = _standard_error(array, share, codes, sizes) ** 2
    worst = float((sizes.astype(np.float64) ** 2).sum() / n)
    effect = np.divide(
        clustered, independent, out=np.full_like(share, worst), where=independent > 0
    )
    size = n / np.maximum(effect, 1)
    quantile = _quantile(sizes, level)
    shrink = 1 + quantile**2 / size
    centre = (share + quantile**2 / (2 * size)) / shrink
    spread = quantile / shrink * np.sqrt(share * (1 - share) / size + quantile**2 / (4 * size**2))
    low = np.minimum(np.maximum(centre - spread, 0), share)
    high = np.maximum(np.minimum(centre + spread, 1), share)
    return Interval(share, low, high)


def _checked(
    values: ArrayLike, clusters: ArrayLike | None, level: float
) -> tuple[NDArray, NDArray[np.intp], NDArray[np.intp]]:
    """The values, each sample's cluster as a number, and the clusters' sizes."""
    array = np.asarray(values)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise AnalysisError(f"no samples to average: got shape {array.shape}, samples come last")
    if not 0 < level < 1:
        raise AnalysisError(f"level {level} asked for; it lies between 0 and 1, such as 0.95")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise NonFiniteError(f"{bad} of {array.size} values are NaN or infinite; drop or mend them")
    n = array.shape[-1]
    if clusters is None:
        return array, np.arange(n), np.ones(n, np.intp)
    labels = np.asarray(clusters)
    if labels.shape != (n,):
        raise AnalysisError(f"{n} samples need {n} cluster labels, got shape {labels.shape}")
    _, codes = np.unique(labels, return_inverse=True)
    return array, codes, np.bincount(codes)


def _standard_error(
    array: NDArray, average: Floats, codes: NDArray[np.intp], sizes: NDArray[np.intp]
) -> Floats:
    """Cluster-robust standard error of the mean over the last axis."""
    n, groups = array.shape[-1], len(sizes)
    if groups == 1:
        return np.full_like(average, np.nan)
    rows = array.reshape(-1, n)
    flat = np.empty(len(rows))
    for number, (row, centre) in enumerate(zip(rows, average.reshape(-1), strict=True)):
        # Deviations first: subtracting n_g·x̄ from sums would cancel where x̄ is large.
        sums = np.bincount(codes, weights=row - centre, minlength=groups)
        flat[number] = np.sqrt(groups / (groups - 1) * (sums @ sums)) / n
    return flat.reshape(average.shape)


def _quantile(sizes: NDArray[np.intp], level: float) -> float:
    """Two-sided quantile of Student's t with (clusters − 1) degrees of freedom."""
    return float(student_t.ppf((1 + level) / 2, len(sizes) - 1)) if len(sizes) > 1 else np.nan


def resampled_counts(
    clusters: ArrayLike | None, n: int, resamples: int, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Bootstrap resamples of whole clusters, as how often each cluster is drawn.

    The clusters are drawn with replacement, as many as there are (Cameron & Miller 2015 §VI.C.2,
    the pairs cluster bootstrap; Field & Welsh 2007, J. R. Statist. Soc. B 69).

    Parameters
    ----------
    clusters : (n,) array, or None
        Labels; None: every sample is its own cluster.
    n, resamples, seed : int

    Returns
    -------
    codes : (n,) int
        Each sample's cluster as a number.
    counts : (resamples, clusters) float64
        Rows sum to the number of clusters.
    """
    _, codes, sizes = _checked(np.zeros(n, np.int8), clusters, 0.5)
    groups = len(sizes)
    counts = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), resamples)
    return codes, counts.astype(np.float64)


def percentiles(value: ArrayLike, resampled: ArrayLike, *, level: float = 0.95) -> Interval:
    """The percentile bootstrap interval of an estimate (Efron & Tibshirani 1993, ch. 13).

    Parameters
    ----------
    value : (...) array
        The estimate itself.
    resampled : (resamples, ...) array
        The same of each resample.
    level : float
    """
    tail = (1 - level) / 2
    low, high = np.quantile(np.asarray(resampled, np.float64), [tail, 1 - tail], axis=0)
    return Interval(np.asarray(value, np.float64), low, high)
