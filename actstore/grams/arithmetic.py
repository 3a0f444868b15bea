"""What the kernel computes with, in numpy: rows shifted, turned and weighted, then multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from actstore.grams.parts import Parts
from actstore.grams.turning import Turn

HEAVY = 128.0
"""Whitened rows with an entry whose square is that many times the mean are multiplied in float64:
in a float32 sum, a large term costs all that come after it their digits."""


@dataclass(frozen=True)
class Recipe:
    """How rows become moments.

    Attributes
    ----------
    shift : mapping from column number to (width,) float64
        Subtracted from the rows in float64.
    dtype : {"float64", "float32"}
        Of the products; they are added up in float64 either way.
    bases : mapping from column number to (width, width) float64, optional
        What the shifted rows are multiplied with, in float64, before the products; moments are
        then in these coordinates, sums are not.
    weights : (n_samples,) float64, optional
        How often each row in view counts.
    parts : Parts, optional
        Statistics of each are kept apart.
    device : str, optional
        A torch device that computes; numpy does where none is given.
    """

    shift: Mapping[int, np.ndarray]
    dtype: str = "float64"
    bases: Mapping[int, np.ndarray] | None = None
    weights: np.ndarray | None = None
    parts: Parts | None = None
    device: str | None = None


class Arithmetic(Protocol):
    """Rows of a batch side by side, and running totals of their products."""

    def load(
        self,
        k: int,
        place: slice,
        rows: np.ndarray,
        weights: np.ndarray | None,
        shares: Sequence[slice],
    ) -> list[np.ndarray]:
        """Put a batch's rows of column k at its place, weighted by √w; gives Σ w (z − shift),
        (width,) float64, of each share of the rows."""

    def multiply(self, key: Any, left: slice, right: slice, share: slice) -> None:
        """Add the product of two places, over some of the rows, to a total."""

    def totals(self) -> dict[Any, np.ndarray]:
        """All totals, in float64."""


class NumpyArithmetic:
    """Numpy's, its buffers allocated once: fresh pages cost more than the products of few rows.

    Parameters
    ----------
    recipe : Recipe
    rows : int
        Most rows of a batch.
    width : int
        Of all places together.
    widest : int
        Of a single column block.
    totals : mapping from key to (height, width) float64
        What the products are added to, in place.
    fresh : bool
        Whether they are all zero.
    """

    def __init__(
        self,
        recipe: Recipe,
        rows: int,
        width: int,
        widest: int,
        totals: Mapping[Any, np.ndarray],
        fresh: bool,
    ) -> None:
        self._recipe = recipe
        self._buffer = np.empty((rows, width), recipe.dtype)
        self._scratch = np.empty(max(total.size for total in totals.values()), recipe.dtype)
        self._totals = dict(totals)
        self._empty = set(totals) if fresh and recipe.dtype == "float64" else set()
        self._heavy = np.zeros(rows, bool)
        self._apart: tuple[np.ndarray, np.ndarray] | None = None
        self._shifted = np.empty(0 if recipe.bases is None else rows * widest)
        self._turns = {k: Turn(basis) for k, basis in (recipe.bases or {}).items()}

    def load(
        self,
        k: int,
        place: slice,
        rows: np.ndarray,
        weights: np.ndarray | None,
        shares: Sequence[slice],
    ) -> list[np.ndarray]:
        """Of `Arithmetic`."""
        n, width = rows.shape
        out, shift = self._buffer[:n, place], self._recipe.shift[k]
        if self._recipe.bases is None:
            values = np.subtract(rows, shift, out=out, casting="same_kind")
        else:
            values = np.subtract(rows, shift, out=self._shifted[: n * width].reshape(n, width))
        if weights is None:
            sums = [np.add.reduce(values[share], axis=0, dtype=np.float64) for share in shares]
        else:
            sums = [weights[share] @ values[share].astype(np.float64) for share in shares]
            values *= np.sqrt(weights)[:, None]
        if self._recipe.bases is not None:
            self._turns[k].rows(values, out)
            if self._apart is not None:
                self._apart, self._heavy[:] = None, False
            largest = np.maximum(out.max(axis=1), -out.min(axis=1))
            self._heavy[:n] |= largest**2 > HEAVY * np.einsum("ij,ij->", out, out) / out.size
        return sums

    def multiply(self, key: Any, left: slice, right: slice, share: slice) -> None:
        """Of `Arithmetic`."""
        total = self._totals[key]
        product = self._scratch[: total.size].reshape(total.shape)
        step = most_rows(self._recipe.dtype, total.size, len(self._buffer))
        heavy = self._set_apart()
        for start in range(share.start, share.stop, step):
            rows = slice(start, min(start + step, share.stop))
            if key in self._empty:
                np.matmul(self._buffer[rows, left].T, self._buffer[rows, right], out=total)
                self._empty.remove(key)
                continue
            np.matmul(self._buffer[rows, left].T, self._buffer[rows, right], out=product)
            np.add(total, product, out=total)
        if self._recipe.bases is not None:
            numbers, values = heavy
            some = slice(*np.searchsorted(numbers, (share.start, share.stop)))
            if some.stop > some.start:
                total += values[some, left].T @ values[some, right]

    def _set_apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and values of the heavy rows of a batch, which are taken out of it."""
        if self._apart is None:
            numbers = np.flatnonzero(self._heavy)
            self._apart = numbers, self._buffer[numbers].astype(np.float64)
            self._buffer[numbers] = 0
        return self._apart

    def totals(self) -> dict[Any, np.ndarray]:
        """Of `Arithmetic`."""
        return self._totals


def most_rows(dtype: str, size: int, rows: int) -> int:
    """Rows multiplied at once, of `rows` at hand, for a product of `size` numbers: float32's
    rounding grows with them and is lost in the sum of many products; a small product is as quick
    in many pieces."""
    if dtype == "float64":
        return max(rows, 1)
    return 256 if size <= 1 << 16 else 1024
