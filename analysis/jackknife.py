"""Intervals of any statistic from its values without each group of documents."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from actstore.errors import AnalysisError
from analysis.stats import Interval


def interval(
    value: ArrayLike, left_out: ArrayLike, sizes: ArrayLike, *, level: float = 0.95
) -> Interval:
    """The delete-m_j jackknife interval.

    With h_j = n/m_j, pseudo-values θ̃_j = h_j θ̂ − (h_j − 1) θ̂_(−j) and their centre
    θ̂_J = G θ̂ − Σ (1 − 1/h_j) θ̂_(−j), the variance is (1/G) Σ (θ̃_j − θ̂_J)²/(h_j − 1) (Busing,
    Meijer and van der Leeden 1999, "Delete-m jackknife for unequal m"). Ends are θ̂ ± t·s with
    Student's t of G − 1 degrees of freedom. For a mean over groups of one size it is the interval
    of `analysis.stats.mean` with those groups as clusters. A difference of two statistics of the
    same samples has a paired interval where it is passed as one statistic.

    Parameters
    ----------
    value : (...) array
        The statistic of all samples, θ̂.
    left_out : (G, ...) array
        The statistic without each group, θ̂_(−j).
    sizes : (G,) array of int
        Samples of each group, m_j.
    level : float
        Coverage, between 0 and 1.

    Returns
    -------
    Interval
        Ends are NaN with fewer than two groups.

    Raises
    ------
    AnalysisError
        Shapes that do not belong together, an empty group, or a level outside (0, 1).
    """
    full, rest = np.asarray(value, np.float64), np.asarray(left_out, np.float64)
    counts = np.asarray(sizes, np.float64)
    if not 0 < level < 1:
        raise AnalysisError(f"level {level} asked for; it lies between 0 and 1, such as 0.95")
    if counts.ndim != 1 or rest.shape != (len(counts), *full.shape):
        raise AnalysisError(
            f"{counts.shape} group sizes and a value of shape {full.shape} need left_out of shape "
            f"(groups, ...), got {rest.shape}"
        )
    if (counts <= 0).any():
        raise AnalysisError("a group without samples cannot be left out; drop it from sizes")
    groups = len(counts)
    if groups < 2:
        nothing = np.full_like(full, np.nan)
        return Interval(full, nothing, nothing.copy())
    shares = (counts.sum() / counts).reshape(-1, *([1] * full.ndim))
    pseudo = shares * full - (shares - 1) * rest
    centre = groups * full - ((1 - 1 / shares) * rest).sum(axis=0)
    error = np.sqrt(((pseudo - centre) ** 2 / (shares - 1)).mean(axis=0))
    reach = float(student_t.ppf((1 + level) / 2, groups - 1)) * error
    return Interval(full, full - reach, full + reach)
