"""The plan of a Gram: who owns which tiles, over which rows, at what cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from actstore.errors import GramError
from actstore.grams.columns import Columns
from actstore.grams.kernel import READ_AS, Tile
from actstore.grams.source import RowSource
from actstore.grams.threads import available_cores

TILE_WIDTH = 1536
BUFFER_BYTES = 256 << 20
BLOCK_ROWS = (256, 512, 1024, 2048, 4096)
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


@dataclass(frozen=True)
class Task:
    """One unit of work: some tiles over a range of row blocks.

    Attributes
    ----------
    tiles : tuple of Tile
    columns : tuple of int
        Column blocks that it reads.
    first, stop : int
        Row blocks ``first`` … ``stop − 1``.
    """

    tiles: tuple[Tile, ...]
    columns: tuple[int, ...]
    first: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """What computing a Gram takes; inspect it before anything is read.

    Attributes
    ----------
    columns : Columns
    n_samples : int
    block_rows : int
        Most rows multiplied at once.
    n_blocks : int
        Row blocks of the run.
    workers : int
        Tasks that run at the same time.
    dtype : str
        Of the products: "float64" or "float32".
    itemsize : int
        Bytes of a number as it is read.
    tasks : tuple of Task
    row_ranges : int
        Shares the rows are cut in; each holds a whole Gram until they are added.
    parts : int
        Parts kept apart, each a Gram of its own; 0 for none.
    """

    columns: Columns
    n_samples: int
    block_rows: int
    n_blocks: int
    workers: int
    dtype: str
    itemsize: int
    tasks: tuple[Task, ...] = field(repr=False)
    row_ranges: int = 1
    parts: int = 0

    @property
    def n_columns(self) -> int:
        """N: features of all column blocks together."""
        return sum(column.width for column in self.columns)

    @property
    def tiles(self) -> list[Tile]:
        """Every tile once."""
        return [tile for task in self.tasks if task.first == 0 for tile in task.tiles]

    @property
    def flops(self) -> int:
        """Floating-point operations of the products, a multiplication and an addition each;
        a symmetric product counts half."""
        return self.n_samples * sum(tile_operations(tile, self.columns) for tile in self.tiles)

    @property
    def gram_bytes(self) -> int:
        """Bytes of the result: the symmetric half in float64."""
        return 8 * sum(
            self.columns[tile.row].width * _width(self.columns, range(tile.start, tile.stop))
            for tile in self.tiles
        )

    @property
    def bytes_read(self) -> int:
        """Bytes read from the store, all tasks together."""
        shares = sum((t.stop - t.first) * _width(self.columns, t.columns) for t in self.tasks)
        return shares * self.n_samples * self.itemsize // max(self.n_blocks, 1)

    @property
    def peak_memory(self) -> int:
        """Bytes held at most: the result, and each running task's buffers; the rows' number
        does not come into it."""
        product = 4 if self.dtype == "float32" else 8
        widest = sorted((_width(self.columns, t.columns) for t in self.tasks), reverse=True)
        buffers = self.block_rows * sum(widest[: self.workers]) * (product + self.itemsize)
        scratch = product * TILE_WIDTH * max(c.width for c in self.columns) * self.workers
        grams = self.row_ranges * max(self.parts, 1) + (1 if self.parts else 0)
        return self.gram_bytes * grams + buffers + scratch

    def __str__(self) -> str:
        return (
            f"Gram of {len(self.columns)} layers, {self.n_columns:,} columns × "
            f"{self.n_samples:,} rows: {self.flops:.3g} operations in {self.dtype}, "
            f"{len(self.tasks)} tasks on {self.workers} threads, {self.block_rows:,} rows at a "
            f"time, {_size(self.bytes_read)} read, peak memory {_size(self.peak_memory)}"
            + (f", {self.parts} parts kept" if self.parts else "")
        )


def make_plan(
    run: RowSource,
    columns: Columns,
    *,
    dtype: str = "float64",
    memory: int | str | None = None,
    workers: int | None = None,
    row_ranges: int = 1,
    block_rows: int | None = None,
    parts: int = 0,
) -> Plan:
    """Cut the upper triangle of ZᵀZ into tasks of equal work.

    Every task owns tiles that lie together, so that it reads few layers; tiles are cut so that
    a product is wide enough to run at full speed.

    Parameters
    ----------
    run : RowSource
    columns : Columns
    dtype : {"float64", "float32"}
        Of the products.
    memory : int or str, optional
        Budget in bytes, or as ``"4GiB"``: fewer rows at a time, then fewer workers.
    workers : int, optional
        Tasks at the same time. Default: the cores this process may use.
    row_ranges : int
        Shares the rows are cut in; each costs a whole Gram of memory.
    block_rows : int, optional
        Most rows multiplied at once. Default: what keeps a task's buffer small.
    parts : int
        Parts to keep apart; each costs a whole Gram of memory, and their sum another.

    Returns
    -------
    Plan

    Raises
    ------
    GramError
        There are no rows, or the budget is too small.
    """
    if run.n_samples == 0:
        raise GramError(f"{run.model}/{run.corpus} has no samples in view: nothing to add up")
    budget = None if memory is None else parse_size(memory)
    workers = workers or available_cores()
    itemsize = np.dtype(READ_AS[run.dtype]).itemsize

    def attempt(workers: int, rows: int | None) -> Plan:
        shares = _share_tiles(columns, workers)
        widest = max(_width(columns, _columns_of(share)) for share in shares)
        fitting = [
            n for n in BLOCK_ROWS if n * widest * (8 + itemsize) <= BUFFER_BYTES and n >= 512
        ]
        rows = rows or (fitting[-1] if fitting else 512)
        blocks = len(run.row_blocks(rows))
        cuts = np.linspace(0, blocks, min(row_ranges, blocks) + 1).astype(int).tolist()
        tasks = [
            Task(tuple(share), _columns_of(share), first, stop)
            for first, stop in pairwise(cuts)
            for share in shares
        ]
        return Plan(
            columns,
            run.n_samples,
            rows,
            blocks,
            workers,
            dtype,
            itemsize,
            tuple(tasks),
            len(cuts) - 1,
            parts,
        )

    plan = attempt(workers, block_rows)
    while budget is not None and plan.peak_memory > budget:
        if plan.block_rows > BLOCK_ROWS[0] and block_rows is None:
            plan = attempt(plan.workers, plan.block_rows // 2)
        elif plan.workers > 1:
            plan = attempt(plan.workers // 2, block_rows or BLOCK_ROWS[0])
        else:
            raise GramError(
                f"memory={memory!r} is too little: the Gram of {len(columns)} layers "
                f"({plan.n_columns:,} columns) takes {_size(plan.gram_bytes)}, "
                f"{_size(plan.peak_memory)} with its {f'{parts} parts and ' if parts else ''}"
                f"buffers; allow that much, or choose fewer {'parts or ' if parts else ''}layers"
            )
    return plan


def _share_tiles(columns: Columns, shares: int) -> list[list[Tile]]:
    """Tiles of the upper triangle, in up to `shares` lots of equal work that lie together."""
    groups = _groups(columns, shares)
    tiles: list[Tile] = []
    for a, b in _triangle(0, len(groups)):
        for row in range(*groups[a]):
            if a == b:
                tiles.append(Tile(row, row, row + 1))
            start = max(row + 1, groups[b][0])
            if start < groups[b][1]:
                tiles.append(Tile(row, start, groups[b][1]))
    work = np.array([tile_operations(tile, columns) for tile in tiles], float)
    middle = (np.cumsum(work) - work / 2) / work.sum()
    owner = np.minimum((middle * shares).astype(int), shares - 1)
    lots = [[t for t, o in zip(tiles, owner, strict=True) if o == k] for k in range(shares)]
    return [lot for lot in lots if lot]


def _groups(columns: Columns, shares: int) -> list[tuple[int, int]]:
    """Runs of neighbouring column blocks, each a tile's width; narrower where the tiles would be
    too few to share out."""
    limit = TILE_WIDTH
    while True:
        groups, start, width = [], 0, 0
        for k, column in enumerate(columns):
            if k > start and width + column.width > limit:
                groups.append((start, k))
                start, width = k, 0
            width += column.width
        groups.append((start, len(columns)))
        if len(groups) >= min(len(columns), 2 * shares) or len(groups) == len(columns):
            return groups
        limit = limit * 3 // 4


def _triangle(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Pairs a ≤ b in an order whose pieces stay compact."""
    if high - low == 1:
        yield low, low
        return
    middle = (low + high) // 2
    yield from _triangle(low, middle)
    yield from _square(low, middle, middle, high)
    yield from _triangle(middle, high)


def _square(a0: int, a1: int, b0: int, b1: int) -> Iterator[tuple[int, int]]:
    if a1 - a0 == b1 - b0 == 1:
        yield a0, b0
    elif a1 - a0 >= b1 - b0:
        middle = (a0 + a1) // 2
        yield from _square(a0, middle, b0, b1)
        yield from _square(middle, a1, b0, b1)
    else:
        middle = (b0 + b1) // 2
        yield from _square(a0, a1, b0, middle)
        yield from _square(a0, a1, middle, b1)


def tile_operations(tile: Tile, columns: Columns) -> int:
    """Floating-point operations of a tile for one row."""
    height = columns[tile.row].width
    width = sum(columns[k].width for k in range(tile.start, tile.stop))
    return height * width * (1 if tile.diagonal else 2)


def _columns_of(tiles: Sequence[Tile]) -> tuple[int, ...]:
    return tuple(sorted({k for t in tiles for k in (t.row, *range(t.start, t.stop))}))


def _width(columns: Columns, chosen: Sequence[int]) -> int:
    return sum(columns[k].width for k in chosen)


def parse_size(size: int | str) -> int:
    """Bytes of ``4096``, ``"4GiB"``, ``"500 MB"``.

    Raises
    ------
    GramError
        Not a size.
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", str(size))
    if found is None or found[2].lower() not in UNITS:
        raise GramError(f"memory={size!r} is not a size; give bytes or a text such as '4GiB'")
    return int(float(found[1]) * UNITS[found[2].lower()])


def _size(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} GiB"
