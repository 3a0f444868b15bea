"""Running a plan: dask's tasks, pass by pass, and the Gram put together from their tiles."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask
import numpy as np
from tqdm import tqdm

from actstore import __version__
from actstore.errors import GramError
from actstore.grams.arithmetic import Recipe
from actstore.grams.caching import cache_group, cache_key
from actstore.grams.columns import Columns
from actstore.grams.kernel import Partial, accumulate
from actstore.grams.parts import Parts
from actstore.grams.planning import Plan, Task
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram, sum_of
from actstore.grams.threads import one_blas_thread
from actstore.grams.tiles import TiledGram


def compute_gram(
    run: RowSource,
    plan: Plan,
    parts: Parts | None = None,
    *,
    progress: bool | None = None,
    client: Any = None,
) -> Gram:
    """Run a plan's tasks and put their tiles together.

    Parameters
    ----------
    run : RowSource
    plan : Plan
        From `make_plan`.
    parts : Parts, optional
        What to keep apart, as many parts as the plan was made for.
    progress, client
        As for `gram`.

    Returns
    -------
    Gram
    """
    if plan.passes > 1:
        raise GramError(
            f"the plan makes {plan.passes} passes, which need a place on disk: "
            "use gram(run, memory=..., cache=True)"
        )
    shift = first_means(run, plan.columns, run.row_blocks(plan.block_rows)[0])
    with _ticks(plan, progress, client) as tick:
        recipe = Recipe(shift, plan.dtype, parts=parts)
        whole = run_tasks(run, plan, plan.of_pass(0), recipe, client, tick)
    return _assemble(run, plan, whole, shift, parts)


def compute_tiled(
    run: RowSource, plan: Plan, *, progress: bool | None = None, client: Any = None
) -> Gram:
    """Run a plan pass by pass, each pass's tiles put on disk beside the run.

    Returns
    -------
    Gram
        Its blocks are read when they are used.
    """
    key = cache_key(run, plan.columns, plan.dtype)
    group = cache_group(run, key, create=True)
    if group is None:
        raise GramError(f"{run.model}/{run.corpus} has no place on disk for tiles of a Gram")
    tiles = TiledGram(group, plan.columns)
    shift = tiles.shift()
    if shift is None:
        shift = tiles.begin(first_means(run, plan.columns, run.row_blocks(plan.block_rows)[0]))
    with _ticks(plan, progress, client) as tick:
        for number in range(plan.passes):
            own = [tile for task in plan.of_pass(number) for tile in task.tiles]
            if not tiles.has(own):
                recipe = Recipe(shift, plan.dtype)
                tiles.write(run_tasks(run, plan, plan.of_pass(number), recipe, client, tick))
            elif tick is not None:
                tick(len(own) * run.n_samples)
    return tiles.finish(run, provenance_of(run, plan.dtype), {"key": key})


def run_tasks(
    run: RowSource,
    plan: Plan,
    tasks: Sequence[Task],
    recipe: Recipe,
    client: Any,
    tick: Callable[[int], object] | None,
) -> Partial:
    """The tiles of some tasks, added up over row ranges."""
    delayed = [
        dask.delayed(_run_task, pure=False, traverse=False)(
            run, plan.columns, task, plan.block_rows, recipe, tick
        )
        for task in tasks
    ]
    if client is not None:
        results = client.gather(client.compute(delayed))
    else:
        with one_blas_thread():
            results = dask.compute(
                *delayed, scheduler="threads", num_workers=plan.workers, optimize_graph=False
            )
    whole: Partial = results[0]
    for other in results[1:]:
        whole.add(other)
    return whole


def first_means(run: RowSource, columns: Columns, block: Any) -> dict[int, np.ndarray]:
    """The shift: each column's mean over one row block, rounded to float32.

    Rounded so that a column that is constant gives exactly zero everywhere: activations have
    float32's digits or fewer.
    """
    shift = {}
    for k, column in enumerate(columns):
        values = run.read(column.site, column.layer, block)
        mean = values.mean(axis=0, dtype=np.float64)
        shift[k] = np.where(np.isfinite(mean), mean, 0).astype(np.float32).astype(np.float64)
    return shift


def _run_task(
    run: RowSource,
    columns: Columns,
    task: Task,
    block_rows: int,
    recipe: Recipe,
    tick: Callable[[int], object] | None,
) -> Partial:
    blocks = run.row_blocks(block_rows)[task.first : task.stop]
    on_batch = None if tick is None else partial(_tick, tick, len(task.tiles))
    return accumulate(run, columns, task.tiles, blocks, recipe, block_rows, on_batch)


def _tick(tick: Callable[[int], object], tiles: int, rows: int) -> None:
    tick(tiles * rows)


def _assemble(
    run: RowSource,
    plan: Plan,
    whole: Partial,
    shift: dict[int, np.ndarray],
    parts: Parts | None,
) -> Gram:
    """Cut tiles into blocks, part by part, and add the parts up."""
    columns = plan.columns
    order = range(len(columns))
    count = 1 if parts is None else len(parts)
    held: list[dict[tuple[int, int], np.ndarray]] = [{} for _ in range(count)]
    for part, pair, values in whole.blocks(columns):
        held[part][pair] = values
    shifts = [shift[k] for k in order]
    totals = [[whole.sums[part, k] for k in order] for part in range(len(held))]
    provenance = provenance_of(run, plan.dtype)
    if parts is None:
        n, total, blocks = run.n_samples, totals[0], held[0]
        return Gram(columns, n, shifts, total, blocks, provenance=provenance, run=run)
    grams = [
        Gram(
            columns,
            n,
            shifts,
            totals[part],
            held[part],
            provenance=part_provenance(run, plan.dtype, label, n),
        )
        for part, (label, n) in enumerate(zip(parts.labels, parts.sizes, strict=True))
    ]
    return sum_of(grams, provenance, run)


def provenance_of(run: RowSource, precision: str) -> dict[str, Any]:
    described = run.info().get("key", {}).get("model", {})
    fingerprint = described.get("fingerprint") if isinstance(described, dict) else None
    entry = {
        "model": run.model,
        "corpus": run.corpus,
        "key": run.key(),
        "n": run.n_samples,
        "sign": 1,
    }
    return {
        "model": run.model,
        "model_fingerprint": fingerprint,
        "runs": [entry],
        "precision": precision,
        "versions": {"actstore": __version__, "numpy": np.__version__},
    }


def part_provenance(run: RowSource, precision: str, label: str, n: int) -> dict[str, Any]:
    whole = provenance_of(run, precision)
    return {**whole, "part": label, "runs": [{**whole["runs"][0], "n": n, "part": label}]}


@contextmanager
def _ticks(
    plan: Plan, progress: bool | None, client: Any
) -> Iterator[Callable[[int], object] | None]:
    """A counter of finished work for the bar, which also ends the other tasks once one has
    failed; a cluster's workers cannot reach it."""
    if client is not None:
        yield None
        return
    total = plan.n_samples * len(plan.tiles)
    lock, ended = threading.Lock(), threading.Event()
    with tqdm(
        total=total,
        desc="gram",
        unit="row·tile",
        unit_scale=True,
        disable=None if progress is None else not progress,
        file=sys.stderr,
    ) as bar:

        def tick(amount: int) -> None:
            if ended.is_set():
                raise GramError("another task has failed")
            with lock:
                bar.update(amount)

        try:
            yield tick
        finally:
            ended.set()
