"""The block kernel: row blocks in, tiles of Σ(z − shift)(z − shift)ᵀ out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from actstore.errors import NonFiniteError
from actstore.grams.arithmetic import Arithmetic, NumpyArithmetic, Recipe
from actstore.grams.columns import Column, Columns
from actstore.grams.parts import Parts
from actstore.grams.source import RowSource
from actstore.grams.threads import one_blas_thread

READ_AS = {
    "float16": "float16",
    "float32": "float32",
    "bfloat16": "float32",
    "int8": "float32",
    "float64": "float64",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """Products of column block `row` with the column blocks `start` … `stop` − 1.

    ``(row, row, row + 1)`` is on the diagonal; all others have ``row < start``.
    """

    row: int
    start: int
    stop: int

    @property
    def diagonal(self) -> bool:
        """Whether it is one block's product with itself."""
        return self.row == self.start


@dataclass(slots=True)
class Partial:
    """What one task gives back: its tiles, and the sums of the columns whose diagonal it owns.

    Keys are (part, tile) and (part, column number); a Gram without parts has part 0 alone.
    """

    tiles: dict[tuple[int, Tile], np.ndarray]
    sums: dict[tuple[int, int], np.ndarray]

    def add(self, other: Partial) -> None:
        """Add another row range's share, in place."""
        _add_all(self.tiles, other.tiles)
        _add_all(self.sums, other.sums)

    def blocks(self, columns: Columns) -> Iterator[tuple[int, tuple[int, int], np.ndarray]]:
        """Each tile cut into the blocks of its pairs: (part, pair, values)."""
        for (part, tile), values in self.tiles.items():
            at = 0
            for k in range(tile.start, tile.stop):
                yield part, (tile.row, k), values[:, at : at + columns[k].width]
                at += columns[k].width

    def over_parts(self) -> Partial:
        """The sums of all parts, as part 0; themselves where there is one."""
        if all(part == 0 for part, _ in (*self.tiles, *self.sums)):
            return self
        whole = Partial({}, {})
        for held, into in ((self.tiles, whole.tiles), (self.sums, whole.sums)):
            for (_, what), values in held.items():
                if (0, what) in into:
                    into[0, what] += values  # type: ignore[index]
                else:
                    into[0, what] = values.copy()  # type: ignore[index]
        return whole


def _add_all(own: dict[Any, np.ndarray], its: Mapping[Any, np.ndarray]) -> None:
    for key, value in its.items():
        if key in own:
            own[key] += value
        else:
            own[key] = value


def accumulate(
    run: RowSource,
    columns: Columns,
    tiles: Sequence[Tile],
    blocks: Sequence[Any],
    recipe: Recipe,
    batch_rows: int,
    on_batch: Callable[[int], object] | None = None,
    into: Partial | None = None,
) -> Partial:
    """Stream row blocks into tiles.

    The shift is subtracted in float64 before the product, which keeps the digits that a large
    mean would cost. Buffers are allocated once; the next rows are read while these are
    multiplied; sums are float64 whatever the products are.

    Parameters
    ----------
    run : RowSource
    columns : Columns
    tiles : sequence of Tile
        Each is written by this call alone.
    blocks : sequence of row blocks
    recipe : Recipe
        What is done to the rows; with parts, a batch's rows are sorted by part, and each part's
        multiplied alone.
    batch_rows : int
        Most rows multiplied at once; neighbouring blocks are put together up to it.
    on_batch : callable, optional
        Told the number of rows done, batch by batch; what it raises ends the work.
    into : Partial, optional
        What these rows are added to, in place: the share of earlier rows. Default: nothing.

    Returns
    -------
    Partial

    Raises
    ------
    NonFiniteError
        NaN or infinity, naming layer and rows.
    """
    needed = sorted({k for tile in tiles for k in (tile.row, *range(tile.start, tile.stop))})
    ends = np.cumsum([columns[k].width for k in needed])
    place = {k: slice(int(e) - columns[k].width, int(e)) for k, e in zip(needed, ends, strict=True)}
    span = {tile: slice(place[tile.start].start, place[tile.stop - 1].stop) for tile in tiles}

    batches = batched(blocks, batch_rows)
    rows = max((sum(map(_n_rows, batch)) for batch in batches), default=0)
    raw = [np.empty((rows, columns[k].width), READ_AS[run.dtype]) for k in needed]

    def read(batch: Sequence[Any]) -> int:
        at = 0
        for block in batch:
            end = at + _n_rows(block)
            for k, out in zip(needed, raw, strict=True):
                run.read(columns[k].site, columns[k].layer, block, out=out[at:end])
            at = end
        return at

    every = range(1 if recipe.parts is None else len(recipe.parts))
    diagonal = {tile.row for tile in tiles if tile.diagonal}
    partial = into or Partial(
        {
            (part, tile): np.zeros((columns[tile.row].width, span[tile].stop - span[tile].start))
            for part in every
            for tile in tiles
        },
        {(part, row): np.zeros(columns[row].width) for part in every for row in diagonal},
    )
    widest = max(columns[k].width for k in needed)
    arithmetic = _arithmetic(recipe, rows, int(ends[-1]), widest, partial.tiles, into is None)
    # Of what is not finite, the owner of the diagonal tells with its place.
    with (
        one_blas_thread(),
        np.errstate(invalid="ignore", over="ignore"),
        ThreadPoolExecutor(1, thread_name_prefix="actstore-read") as reader,
    ):
        ahead = reader.submit(read, batches[0]) if batches else None
        for number, batch in enumerate(batches):
            assert ahead is not None
            n = ahead.result()
            order, shares = _by_part(batch, recipe.parts)
            weights = _weights(batch, recipe.weights, order)
            for k, values in zip(needed, raw, strict=True):
                rows_of = values[:n] if order is None else values[order]
                summed = shares if k in diagonal else []
                found = arithmetic.load(k, place[k], rows_of, weights, [s for _, s in summed])
                for (part, _), part_sum in zip(summed, found, strict=True):
                    if not np.isfinite(part_sum).all():
                        raise _non_finite(run, columns[k], batch)
                    partial.sums[part, k] += part_sum
            if number + 1 < len(batches):
                ahead = reader.submit(read, batches[number + 1])
            for tile in tiles:
                for part, share in shares:
                    arithmetic.multiply((part, tile), place[tile.row], span[tile], share)
            if on_batch is not None:
                on_batch(n)
    partial.tiles = arithmetic.totals()
    return partial


def _arithmetic(recipe: Recipe, *sizes: Any) -> Arithmetic:
    if recipe.device is None:
        return NumpyArithmetic(recipe, *sizes)
    from actstore.grams.torch_arithmetic import TorchArithmetic

    return TorchArithmetic(recipe, *sizes)


def batched(blocks: Sequence[Any], rows: int) -> list[list[Any]]:
    """Neighbouring row blocks put together, up to `rows` rows: a selection's blocks may be small,
    and short products are slow."""
    batches: list[list[Any]] = []
    held = 0
    for block in blocks:
        if not batches or held + _n_rows(block) > rows:
            batches.append([])
            held = 0
        batches[-1].append(block)
        held += _n_rows(block)
    return batches


def _by_part(
    batch: Sequence[Any], parts: Parts | None
) -> tuple[np.ndarray | None, list[tuple[int, slice]]]:
    """The order that brings a batch's rows together by part, and where each part's then lie."""
    if parts is None:
        return None, [(0, slice(0, sum(map(_n_rows, batch))))]
    numbers = np.concatenate([parts.numbers[block.out] for block in batch])
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:], len(order)]
    return order, [
        (int(p), slice(int(a), int(b))) for p, a, b in zip(found, starts, ends, strict=True)
    ]


def _weights(
    batch: Sequence[Any], weights: np.ndarray | None, order: np.ndarray | None
) -> np.ndarray | None:
    """The weights of a batch's rows, in their order."""
    if weights is None:
        return None
    found = np.concatenate([weights[block.out] for block in batch])
    return found if order is None else found[order]


def _n_rows(block: Any) -> int:
    return int(block.out.stop - block.out.start)


def _non_finite(run: RowSource, column: Column, batch: Sequence[Any]) -> NonFiniteError:
    bad: list[int] = []
    for block in batch:
        values = run.read(column.site, column.layer, block)
        rows = np.flatnonzero(~np.isfinite(values).all(axis=1)) + block.out.start
        bad += rows.tolist()
    shown = ", ".join(map(str, bad[:5])) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    return NonFiniteError(
        f"{run.model}/{run.corpus}: {column.site} layer {column.layer} has NaN or infinity in "
        f"rows {shown}; leave them out with run.isel(sample=...) or extract in another dtype"
    )
