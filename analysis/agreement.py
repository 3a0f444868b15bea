"""Agreement between annotators beyond chance, for nominal answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import AnalysisError


def cohen_kappa(one: ArrayLike, other: ArrayLike) -> float:
    """Cohen's κ of two annotators: (p_o − p_e) / (1 − p_e).

    p_o is the share of items with the same answer and p_e the one expected from each
    annotator's own shares (Cohen 1960, "A Coefficient of Agreement for Nominal Scales", Educ.
    Psychol. Meas. 20). Items that one of them did not judge (NaN) are left out.

    Parameters
    ----------
    one, other : (items,) arrays of numbers
        Category of each item; NaN where not judged.

    Returns
    -------
    float
        At most 1; NaN where no item was judged by both, or both always gave one answer.

    Raises
    ------
    AnalysisError
        Arrays of different lengths.
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise AnalysisError(f"two answers to each item needed, got shapes {a.shape} and {b.shape}")
    known = ~(np.isnan(a) | np.isnan(b))
    a, b = a[known], b[known]
    if a.size == 0:
        return float("nan")
    observed = float((a == b).mean())
    categories = np.unique(np.concatenate([a, b]))
    expected = sum(float((a == c).mean() * (b == c).mean()) for c in categories)
    return float("nan") if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(answers: ArrayLike) -> float:
    """Krippendorff's α for nominal data, any number of annotators, with gaps: 1 − D_o / D_e.

    Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", §§B–C. With
    n_uc the times that unit u was given category c, n_u = Σ_c n_uc, n_c the sum over units with
    n_u ≥ 2 (others cannot be paired and are left out) and n = Σ_c n_c:
    D_o = Σ_u Σ_{c≠k} n_uc n_uk / (n_u − 1) / n, D_e = Σ_{c≠k} n_c n_k / (n (n − 1)).

    Parameters
    ----------
    answers : (annotators, units) array of numbers
        Categories; NaN where not judged.

    Returns
    -------
    float
        At most 1; NaN where nothing can be paired or only one answer was ever given.
    """
    values = np.asarray(answers, np.float64)
    if values.ndim != 2:
        raise AnalysisError(f"answers (annotators, units) needed, got shape {values.shape}")
    categories = np.unique(values[~np.isnan(values)])
    counts: NDArray[np.int64] = (values[None] == categories[:, None, None]).sum(axis=1)
    counts = counts[:, counts.sum(axis=0) >= 2]
    per_unit, per_category = counts.sum(axis=0), counts.sum(axis=1)
    n = int(per_unit.sum())
    if n == 0:
        return float("nan")
    different = per_unit**2 - (counts**2).sum(axis=0)
    observed = float((different / (per_unit - 1)).sum() / n)
    expected = float((n**2 - (per_category**2).sum()) / (n * (n - 1)))
    return float("nan") if expected == 0 else 1 - observed / expected
