"""Whitening by a sketch: coordinates in which float32 products keep what float64 ones would.

From a few random rows of a layer comes R with RᵀR ≈ its covariance. Moments of the rows times
T = R⁻¹ are near the identity, where float32 loses nothing to scales, means or collinearity, and
are exact for any invertible T: ZᵀZ = Rᵀ (ZT)ᵀ(ZT) R. What a sketch that missed rare rows would
cost shows in the condition of the whitened moments, and is mended by whitening them once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.linalg import lapack, solve_triangular

from actstore.grams.columns import Column, Columns
from actstore.grams.kernel import Partial, Tile
from actstore.grams.source import RowSource
from actstore.grams.threads import available_cores, one_blas_thread
from actstore.grams.turning import Turn

ROWS_PER_FEATURE = 4
LEAST_ROWS = 1024
MOST_BLOCKS = 64
"""Row blocks that a sketch is drawn from, spread evenly: all of a run of up to 250,000 rows."""
BLOCK_ROWS = 4096
GUARD = 1e3
"""Largest condition of whitened moments that float32 products are trusted with."""
DOUBT = 10.0
"""By how much a condition may be above its estimate."""
COLLINEAR = 1e9
"""Largest condition of a layer's scaled columns that a factor in float64 can whiten."""
ROUNDING = 1e-6
"""What float32 products leave uncertain of the smallest eigenvalues, beside the largest."""


@dataclass
class Whitening:
    """What whitens each column block.

    Attributes
    ----------
    shift : dict from column number to (width,) float64
    bases : dict from column number to (width, width) float64
        T; moments of (z − shift) T are near n times the identity.
    unfit : set of int
        Column blocks that no T was found for: constant or collinear columns, or too few rows.
    rows : int
        Rows drawn.
    seed : int
        Of the draw.
    """

    shift: dict[int, np.ndarray]
    bases: dict[int, np.ndarray]
    unfit: set[int]
    rows: int
    seed: int


def draw(
    run: RowSource,
    columns: Columns,
    seed: int,
    weights: np.ndarray | None = None,
    shift: Mapping[int, np.ndarray] | None = None,
) -> Whitening:
    """Whiten every column block by a sketch of its rows.

    Parameters
    ----------
    run : RowSource
    columns : Columns
    seed : int
        Of the draw: four rows for each feature of the widest block, 1,024 at least, without
        replacement.
    weights : (n_samples,) float64, optional
        Rows that weigh nothing are not drawn.
    shift : mapping from column number to (width,) float64, optional
        Default: the sketch's own mean, rounded to float32 so that constant columns become zero.
    """
    chosen = _choose(run, max(column.width for column in columns), seed, weights)
    count = sum(len(rows) for _, rows in chosen)
    found = Whitening({}, {}, set(), count, seed)

    def one(k: int) -> tuple[np.ndarray, np.ndarray | None]:
        values, counts = _rows(run, columns[k], chosen, weights)
        own = _mean(values, counts) if shift is None else shift[k]
        return own, _factor((values - own) * np.sqrt(counts)[:, None], counts.sum())

    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        for k, (own, basis) in enumerate(pool.map(one, range(len(columns)))):
            found.shift[k] = own
            found.bases[k] = np.eye(columns[k].width) if basis is None else basis
            if basis is None:
                found.unfit.add(k)
    return found


def _choose(
    run: RowSource, width: int, seed: int, weights: np.ndarray | None
) -> list[tuple[object, np.ndarray]]:
    """Row blocks, and which rows of each are drawn."""
    blocks = list(run.row_blocks(BLOCK_ROWS))
    rng = np.random.default_rng(seed)
    if len(blocks) > MOST_BLOCKS:
        cuts = np.linspace(0, len(blocks), MOST_BLOCKS + 1).astype(int)
        blocks = [blocks[rng.integers(a, b)] for a, b in pairwise(cuts)]
    numbers = np.concatenate([np.arange(b.out.start, b.out.stop) for b in blocks])
    if weights is not None:
        numbers = numbers[weights[numbers] > 0]
    size = min(len(numbers), max(ROWS_PER_FEATURE * width, LEAST_ROWS))
    drawn = np.sort(rng.choice(numbers, size, replace=False))
    starts = np.searchsorted(drawn, [b.out.start for b in blocks])
    ends = np.searchsorted(drawn, [b.out.stop for b in blocks])
    return [(b, drawn[s:e]) for b, s, e in zip(blocks, starts, ends, strict=True) if e > s]


def _rows(
    run: RowSource,
    column: Column,
    chosen: Sequence[tuple[object, np.ndarray]],
    weights: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, width) float64 of the rows drawn, and how often each counts."""
    values, counts = [], []
    for block, rows in chosen:
        read = run.read(column.site, column.layer, block)
        values.append(read[rows - block.out.start].astype(np.float64))  # type: ignore[attr-defined]
        counts.append(np.ones(len(rows)) if weights is None else weights[rows])
    if not values:
        return np.zeros((0, column.width)), np.zeros(0)
    return np.concatenate(values), np.concatenate(counts)


def _mean(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mean = counts @ values / counts.sum()
        rounded = mean.astype(np.float32).astype(np.float64)
    return np.asarray(np.where(np.isfinite(rounded), rounded, 0.0))


def _factor(rows: np.ndarray, weight: float) -> np.ndarray | None:
    """T = R⁻¹ with RᵀR = rowsᵀrows / weight; None where there is no safe one."""
    n, width = rows.shape
    if n <= width or not np.isfinite(rows).all():
        return None
    scale = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    if not (scale > 0).all():
        return None
    triangle = np.linalg.qr(rows / scale, mode="r")
    reciprocal, failed = lapack.dtrcon(triangle, norm="1", uplo="U")
    if failed or reciprocal * COLLINEAR < 1:
        return None
    basis = solve_triangular(triangle, np.eye(width), overwrite_b=True)
    return np.ascontiguousarray(basis * (np.sqrt(weight) / scale)[:, None])


def whitened(partial: Partial, k: int) -> np.ndarray:
    """(width, width) moments of one column block with itself, of all parts together."""
    tile = Tile(k, k, k + 1)
    return np.sum([v for (_, t), v in partial.tiles.items() if t == tile], axis=0)


def spectra(
    partial: Partial, whitening: Whitening, chosen: Sequence[int], n: float
) -> Iterator[tuple[int, float, np.ndarray, np.ndarray]]:
    """Of each chosen column block: number, condition of the whitened moments, eigenvalues and
    vectors of their centred part.

    The condition is that of the worse of both kinds: the largest eigenvalue about the shift beside
    the smallest about the mean. Where a Cholesky factor shows it to be far below the guard, its
    1-norm estimate stands for it, and nothing is decomposed.
    """

    def one(k: int) -> tuple[int, float, np.ndarray, np.ndarray]:
        moments = whitened(partial, k) / n
        total = np.sum([v for (_, c), v in partial.sums.items() if c == k], axis=0)
        mean = total @ whitening.bases[k] / n
        centred = moments - np.outer(mean, mean)
        bound = _bound(centred, float(mean @ mean))
        if bound <= GUARD / DOUBT:
            return k, bound, np.empty(0), np.empty((0, 0))
        values, vectors = np.linalg.eigh(centred)
        largest = values[-1] + mean @ mean
        condition = largest / values[0] if values[0] > ROUNDING * largest else np.inf
        return k, float(condition), values, vectors

    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        yield from pool.map(one, chosen)


def _bound(moments: np.ndarray, more: float) -> float:
    """1-norm condition of moments, as estimated, with so much added to the largest; infinite for
    what has no Cholesky factor."""
    norm = float(np.abs(moments).sum(axis=0).max())
    factor, failed = lapack.dpotrf(moments.T, lower=1)
    if failed or not np.isfinite(norm):
        return np.inf
    reciprocal, _ = lapack.dpocon(factor, norm, uplo="L")
    return (norm + more) / norm / reciprocal if reciprocal > 0 else np.inf


def refreshed(basis: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """T that whitens what T did not: T V Λ^(−1/2).

    Where an eigenvalue is lost in the rounding of much larger ones, the sketch is believed, in
    which it is 1.
    """
    known = 4 * ROUNDING * values[-1]
    trusted = np.where(values > known, values, min(1.0, known))
    return np.ascontiguousarray(basis @ vectors / np.sqrt(trusted))


def restore(partial: Partial, columns: Columns, bases: Mapping[int, np.ndarray]) -> None:
    """Turn whitened moments into those of the rows, in place: T⁻ᵀ M T⁻¹."""
    inverses: dict[int, Turn] = {}

    def invert(k: int) -> None:
        inverses[k] = Turn(bases[k]).inverse()

    def one(item: tuple[tuple[int, Tile], np.ndarray]) -> None:
        (_, tile), values = item
        inverses[tile.row].moments(values)
        at = 0
        for k in range(tile.start, tile.stop):
            block = values[:, at : at + columns[k].width]
            inverses[k].rows(block, block)
            at += columns[k].width
        if tile.diagonal:
            values += values.T.copy()
            values /= 2

    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(invert, bases))
        list(pool.map(one, partial.tiles.items()))
