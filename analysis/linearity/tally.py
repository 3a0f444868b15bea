"""Errors in logarithmic bins: distributions of any number of samples in fixed memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# log₁₀ of the bins' ends, and bins for each factor of ten; one more at either end for what is
# smaller or greater.
LOWEST, HIGHEST, FINE, COARSE = -6, 4, 200, 10


@dataclass
class Tally:
    """Counts and sums of squares of the errors of one step, by class and group."""

    n_classes: int
    n_groups: int

    def __post_init__(self) -> None:
        bins = (HIGHEST - LOWEST) * FINE + 2
        self.counts = np.zeros((self.n_classes, self.n_groups, bins), np.int64)
        self.squares = np.zeros((self.n_classes, self.n_groups))
        self.defined = True

    def add(self, values: Floats, masks: NDArray[np.bool_], groups: NDArray[np.intp]) -> None:
        """Take in some samples' errors."""
        bins = self.counts.shape[2]
        with np.errstate(divide="ignore"):
            place = np.floor((np.log10(values) - LOWEST) * FINE) + 1
        place = np.clip(place, 0, bins - 1).astype(np.intp)
        squares = np.where(np.isfinite(values), values, 0.0) ** 2
        for number, mask in enumerate(masks):
            at = groups[mask] * bins + place[mask]
            found = np.bincount(at, minlength=self.n_groups * bins)
            self.counts[number] += found.reshape(self.n_groups, bins)
            self.squares[number] += np.bincount(groups[mask], squares[mask], self.n_groups)


def quantile(counts: NDArray, levels: Sequence[float]) -> Floats:
    """(..., levels) quantiles of counts (..., bins), interpolated in the logarithm.

    0 below the lowest bin and infinity above the highest; NaN without samples.
    """
    edges = LOWEST + np.arange((HIGHEST - LOWEST) * FINE + 1) / FINE
    rows = counts.reshape(-1, counts.shape[-1]).astype(np.float64)
    found = np.full((len(rows), len(levels)), np.nan)
    for number, row in enumerate(rows):
        total = np.cumsum(row)
        if total[-1] <= 0:
            continue
        for column, level in enumerate(levels):
            wanted = level * total[-1]
            place = int(np.searchsorted(total, max(wanted, np.nextafter(0, 1))))
            if place in (0, len(row) - 1):
                found[number, column] = 0.0 if place == 0 else np.inf
                continue
            inside = (wanted - (total[place] - row[place])) / row[place]
            found[number, column] = 10 ** (edges[place - 1] + max(inside, 0.0) / FINE)
    return found.reshape(*counts.shape[:-1], len(levels))


def coarse(counts: NDArray) -> NDArray[np.int64]:
    """(..., bins + 2) counts of wider bins, `COARSE` for each factor of ten, ends kept."""
    inner = counts[..., 1:-1]
    step = FINE // COARSE
    wide = inner.reshape(*inner.shape[:-1], -1, step).sum(axis=-1)
    return np.concatenate([counts[..., :1], wide, counts[..., -1:]], axis=-1)


def coarse_edges() -> Floats:
    """(bins + 3,) ends of the bins of `coarse`: 0, 10⁻⁶ … 10⁴, infinity."""
    inner = 10.0 ** (LOWEST + np.arange((HIGHEST - LOWEST) * COARSE + 1) / COARSE)
    return np.concatenate([[0.0], inner, [np.inf]])
