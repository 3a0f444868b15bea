"""Making the plan of a Gram: who owns which tiles, over which rows, within a budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from actstore.errors import GramError
from actstore.grams.columns import Columns
from actstore.grams.kernel import READ_AS
from actstore.grams.plans import Plan, Task
from actstore.grams.sizes import parse_size, show_size
from actstore.grams.source import RowSource
from actstore.grams.threads import available_cores
from actstore.grams.tiling import columns_of, plane_orders, share_passes, width_of

BUFFER_BYTES = 256 << 20
BLOCK_ROWS = (256, 512, 1024, 2048, 4096)


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
    tiled: bool = False,
    blocks: frozenset[tuple[int, int]] | None = None,
) -> Plan:
    """Cut the upper triangle of ZᵀZ into tasks of equal work.

    Every task owns tiles that lie together, so that it reads few layers; tiles are cut so that
    a product is wide enough to run at full speed.

    Parameters
    ----------
    run : RowSource
    columns : Columns
    dtype : {"float64", "float32", "sketch"}
        Of the products.
    memory : int or str, optional
        Budget in bytes, or as ``"4GiB"``: fewer rows at a time, then more passes where they are
        allowed, then fewer workers.
    workers : int, optional
        Tasks at the same time. Default: the cores this process may use.
    row_ranges : int
        Shares the rows are cut in; each costs a whole Gram of memory.
    block_rows : int, optional
        Most rows multiplied at once. Default: what keeps a task's buffer small.
    parts : int
        Parts to keep apart; each costs a whole Gram of memory, and their sum another.
    tiled : bool
        Whether several passes may be made, with tiles put on disk; not with row ranges.
    blocks : frozenset of (i, j), i ≤ j, optional
        Which to compute, every column's with itself among them. Default: all.

    Returns
    -------
    Plan

    Raises
    ------
    GramError
        There are no rows, no workers, or the budget is too small.
    """
    if run.n_samples == 0:
        raise GramError(f"{run.model}/{run.corpus} has no samples in view: nothing to add up")
    budget = None if memory is None else parse_size(memory)
    if workers is None:
        # Rows made by a model are made anew for every task that reads them.
        workers = 1 if getattr(run, "sequential", False) else available_cores()
    if workers < 1:
        raise GramError(f"workers={workers}: at least one task runs at a time")
    itemsize = np.dtype(READ_AS[run.dtype]).itemsize

    def attempt(workers: int, rows: int | None, order: int) -> Plan:
        passes = share_passes(columns, workers, order, blocks)
        widest = max(width_of(columns, columns_of(lot)) for lots in passes for lot in lots)
        fitting = [
            n for n in BLOCK_ROWS if n * widest * (8 + itemsize) <= BUFFER_BYTES and n >= 512
        ]
        rows = rows or (fitting[-1] if fitting else 512)
        n_blocks = len(run.row_blocks(rows))
        cuts = np.linspace(0, n_blocks, min(row_ranges, n_blocks) + 1).astype(int).tolist()
        tasks = [
            Task(tuple(lot), columns_of(lot), first, stop, number)
            for number, lots in enumerate(passes)
            for first, stop in pairwise(cuts)
            for lot in lots
        ]
        return Plan(
            columns,
            run.n_samples,
            rows,
            n_blocks,
            workers,
            dtype,
            itemsize,
            tuple(tasks),
            len(cuts) - 1,
            parts,
            len(passes),
            getattr(run, "held_bytes", 0),
            getattr(run, "sequential", False),
            blocks,
        )

    orders = plane_orders(len(columns)) if tiled and row_ranges == 1 else [1]
    plan = attempt(workers, block_rows, 1)
    if budget is None:
        return plan
    while True:
        for order in orders:
            plan = attempt(workers, block_rows, order)
            while plan.peak_memory > budget and plan.block_rows > BLOCK_ROWS[0] and not block_rows:
                plan = attempt(workers, plan.block_rows // 2, order)
            if plan.peak_memory <= budget:
                return plan
        if workers == 1:
            raise GramError(_too_little(memory, plan, tiled))
        workers //= 2


def _too_little(memory: int | str | None, plan: Plan, tiled: bool) -> str:
    with_parts = f"{plan.parts} parts and " if plan.parts else ""
    advice = f"allow that much, or choose fewer {'parts or ' if plan.parts else ''}layers"
    if not tiled:
        advice += ", or let tiles be kept in the run's store with cache=True"
    return (
        f"memory={memory!r} is too little: the Gram of {len(plan.columns)} layers "
        f"({plan.n_columns:,} columns) takes {show_size(plan.gram_bytes)}, "
        f"{show_size(plan.peak_memory)} with its {with_parts}buffers"
        f"{' tile by tile' if plan.passes > 1 else ''}; {advice}"
    )
