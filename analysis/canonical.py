"""Canonical correlations of two layers from their second moments: pure kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.fitting.solving import Spectrum, spectrum

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Canonical:
    """CCA of X and Y, centred: pairs of directions that correlate most, one after the other.

    Attributes
    ----------
    correlations : (r,) float64
        ρ, decreasing, in [0, 1].
    left, right : (rank of X, r), (rank of Y, r) float64
        Canonical directions, in coordinates of the whitened sides.
    """

    correlations: Floats
    left: Floats
    right: Floats


def side(moments: Floats, eps: float) -> Spectrum:
    """Principal directions of one side, for `whitened`.

    Parameters
    ----------
    moments : (d, d) float64
        Σ(x − x̄)(x − x̄)ᵀ.
    eps : float
        Precision of the moments; directions below ε·d of the largest are left out.
    """
    return spectrum(moments, eps)


def whitened(left: Spectrum, right: Spectrum, cross: Floats) -> Floats:
    """Λx^−½ Vxᵀ Σxy Vy Λy^−½, whose singular values are the canonical correlations.

    Rows and columns follow the principal directions, so its first k rows and l columns are the
    same of X and Y cut down to their first k and l principal components.

    Parameters
    ----------
    cross : (dx, dy) float64
        Σ(x − x̄)(y − ȳ)ᵀ.
    """
    core = left.vectors.T @ cross @ right.vectors
    core /= np.sqrt(left.values)[:, None]
    core /= np.sqrt(right.values)
    return np.asarray(core)


def correlations(core: Floats) -> Floats:
    """ρ of what `whitened` gave, decreasing, cut off at 1."""
    return np.minimum(np.linalg.svd(core, compute_uv=False), 1.0)


def canonical(core: Floats) -> Canonical:
    """ρ with the directions."""
    left, values, right = np.linalg.svd(core, full_matrices=False)
    return Canonical(np.minimum(values, 1.0), left, right.T)


def projection_weights(side: Spectrum, directions: Floats) -> Floats:
    """α_i = Σ_j |⟨h_i, x_j⟩| over the features x_j, h_i the canonical variates of that side.

    "Insights on representational similarity in neural networks with canonical correlation"
    (Morcos, Raghu, Bengio 2018, arXiv 1806.05759, §2.3).
    """
    weights = np.abs(directions.T @ (np.sqrt(side.values)[:, None] * side.vectors.T)).sum(axis=1)
    return np.asarray(weights)


def components_for(values: Floats, variance: float) -> int:
    """How many of the first principal components hold at least this share of the variance."""
    shares = np.cumsum(values) / values.sum()
    return min(int(np.searchsorted(shares, variance * (1 - 1e-12))) + 1, len(values))
