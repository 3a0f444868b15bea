"""Pure kernels of the linearity score: from the moments of a pair of layers to numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, solve_triangular

from actstore.grams import Gram
from actstore.grams.columns import Key

Floats = NDArray[np.float64]
NAMES = ("score", "score_no_residual", "orthogonal", "output_over_stream")

# Where the scaled moments' condition is worse, what does not stand above rounding is left out.
_SAFE = 1e10


@dataclass(frozen=True)
class Pair:
    """Centred moments of two layers X and Y of n rows.

    Attributes
    ----------
    inner : (d, d) float64
        X_cᵀX_c.
    cross : (d, e) float64
        X_cᵀY_c.
    energy_x, energy_y : float
        ‖X_c‖²_F and ‖Y_c‖²_F; 0 where it is rounding.
    energy_output : float
        ‖Y_c − X_c‖²_F; NaN where widths differ.
    ratio : float
        ‖Y − X‖_F/‖X‖_F, nothing centred.
    eps : float
        Of the products that the moments were summed from.
    constant : (d,) bool
        Columns of X that do not vary.
    """

    inner: Floats
    cross: Floats
    energy_x: float
    energy_y: float
    energy_output: float
    ratio: float
    eps: float
    constant: NDArray[np.bool_]

    @classmethod
    def of(cls, moments: Gram, x: Key, y: Key) -> Pair:
        """Of two layers of a Gram."""
        eps = moments.eps
        inner, cross = moments.cross(x, x, centred=True), moments.cross(x, y, centred=True)
        at_x, constant = _spread(moments, x, eps)
        at_y, _ = _spread(moments, y, eps)
        output, ratio = np.nan, np.nan
        if len(at_x) == len(at_y):
            both = np.trace(cross)
            output = _above_rounding(at_x.sum() + at_y.sum() - 2 * both, at_x.sum() + at_y.sum())
            step = moments.mean(y) - moments.mean(x)
            raw = at_x.sum() + moments.n * (moments.mean(x) ** 2).sum()
            if raw > 0:
                ratio = float(np.sqrt((output + moments.n * (step @ step)) / raw))
        return cls(inner, cross, at_x.sum(), at_y.sum(), output, ratio, eps, constant)

    @property
    def explained(self) -> float:
        """tr(S_yx S_xx⁺ S_xy): what the best map reaches of ‖Y_c‖²_F."""
        used = ~self.constant
        scale = 1 / np.sqrt(np.diagonal(self.inner)[used])
        design = self.inner[np.ix_(used, used)] * scale * scale[:, None]
        projected = self.cross[used] * scale[:, None]
        # The best fit does not depend on the columns' scales; the condition does.
        np.fill_diagonal(design, 1.0)
        norm = float(np.abs(design).sum(axis=0).max(initial=0.0))
        factor, failed = lapack.dpotrf(design, lower=1) if norm else (design, 1)
        if not failed and lapack.dpocon(factor, norm, uplo="L")[0] * _SAFE >= 1:
            reached = solve_triangular(factor, projected, lower=True, check_finite=False)
            return float((reached**2).sum())
        values, vectors = np.linalg.eigh(design)
        kept = values > self.eps * 10 * len(values) * max(values.max(initial=0.0), 0.0)
        reached = vectors[:, kept].T @ projected
        return float((reached**2 / values[kept, None]).sum())

    def rotation(self) -> Floats | None:
        """The best orthogonal map, U Vᵀ of X_cᵀY_c = U S Vᵀ; None where widths differ."""
        if np.isnan(self.energy_output):
            return None
        left, _, right = np.linalg.svd(self.cross)
        return np.asarray(left @ right)

    def statistics(self, rotation: Floats | None = None) -> Floats:
        """(4,) float64: the numbers called `NAMES`.

        Parameters
        ----------
        rotation : (d, d) float64, optional
            Orthogonal map to judge with its best scale; without it there is no such score.
        """
        error = max(self.energy_y - self.explained, 0.0)
        rotated = np.nan
        if rotation is not None:
            shared = max(float(np.einsum("ij,ij->", rotation, self.cross)), 0.0)
            rotated = _ratio(shared**2, self.energy_x * self.energy_y)
        return np.array(
            [
                1 - _ratio(error, self.energy_y),
                1 - _ratio(error, self.energy_output),
                rotated,
                self.ratio,
            ]
        )


def _ratio(part: float, whole: float) -> float:
    """NaN where the whole is 0."""
    return part / whole if whole > 0 else np.nan


def _above_rounding(value: float, scale: float) -> float:
    return float(value) if value > 1e-13 * scale else 0.0


def _spread(moments: Gram, key: Key, eps: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Σ(z − z̄)² of each column, rounding taken for 0, and which columns that leaves constant."""
    place = moments.columns.index(key)
    spread = moments.variance(key)
    about_shift = spread + moments.total[place] ** 2 / moments.n
    mean = moments.mean(key)
    constant = spread <= np.maximum(100 * eps * about_shift, moments.n * (1e-13 * mean) ** 2)
    return np.where(constant, 0.0, spread), constant
