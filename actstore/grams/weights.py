"""Weights of samples: how often each row counts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from actstore.errors import GramError
from actstore.grams.parts import Parts
from actstore.grams.source import RowSource


@dataclass(frozen=True)
class Weights:
    """How often each row in view counts.

    Attributes
    ----------
    name : str
        Of the sample coordinate they are, or "array".
    values : (n_samples,) float64
        Not negative.
    """

    name: str
    values: np.ndarray

    def digest(self) -> str:
        """SHA-256 of the values."""
        return hashlib.sha256(self.values.astype("<f8").tobytes()).hexdigest()

    def sums(self, parts: Parts) -> np.ndarray:
        """(parts,) Σ w of each."""
        return np.bincount(parts.numbers, self.values, minlength=len(parts))


def make_weights(run: RowSource, weights: Any, parts: Parts | None = None) -> Weights:
    """Check weights at the door.

    Parameters
    ----------
    run : RowSource
    weights : (n_samples,) array of float ≥ 0, or str
        Or the name of a numeric sample coordinate.
    parts : Parts, optional
        Each of which must weigh something.

    Raises
    ------
    GramError
        Another length, values that are negative or not finite, nothing that counts at all, or a
        coordinate that is not of numbers.
    """
    name = weights if isinstance(weights, str) else "array"
    where = f"{run.model}/{run.corpus}"
    if isinstance(weights, str):
        find = getattr(run, "coordinate", None)
        if find is None:
            raise GramError(f"{where} has no sample coordinates: give weights as an array")
        weights = find(weights)
    values = np.asarray(weights)
    if values.dtype.kind not in "fiub":
        raise GramError(
            f"weights={name!r} are of {values.dtype}: give a number ≥ 0 for each sample"
        )
    if values.shape != (run.n_samples,):
        raise GramError(
            f"weights are of shape {values.shape}, but {where} has {run.n_samples:,} samples in "
            "view: give the weight of each"
        )
    values = values.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise GramError(
            f"weights={name!r}: row {bad[0]} weighs {values[bad[0]]}; weights are finite and ≥ 0"
        )
    if not values.any():
        raise GramError(f"weights={name!r} are all zero: no row of {where} counts")
    found = Weights(name, values)
    if parts is not None:
        empty = np.flatnonzero(found.sums(parts) == 0)
        if len(empty):
            raise GramError(
                f"all rows of part {parts.labels[empty[0]]!r} weigh zero: choose other parts, or "
                "leave those rows out with run.isel(sample=...)"
            )
    return found
