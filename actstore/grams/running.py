"""Tasks of a plan on threads or on a cluster, and a pass of them with checkpoints on its way."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import dask
import numpy as np
from tqdm import tqdm

from actstore.errors import GramError, MissingDependencyError
from actstore.grams.arithmetic import Recipe
from actstore.grams.checkpoints import Checkpoints, SumsSoFar
from actstore.grams.columns import Columns
from actstore.grams.kernel import Partial, accumulate, batched
from actstore.grams.plans import Plan, Task
from actstore.grams.source import RowSource
from actstore.grams.threads import one_blas_thread
from actstore.grams.tiles import TiledGram

Tick = Callable[[int], object]


def run_pass(
    run: RowSource,
    plan: Plan,
    number: int,
    recipe: Recipe,
    client: Any,
    tick: Tick | None,
    checkpoints: Checkpoints | None = None,
    saved: SumsSoFar | None = None,
) -> Partial:
    """The tiles of one pass; stretch by stretch of rows, where checkpoints are kept in between.

    Stretches end where batches do, so that the sums are rounded alike with and without them.
    """
    tasks = plan.of_pass(number)
    if checkpoints is None or plan.row_ranges > 1:
        return run_tasks(run, plan, tasks, recipe, client, tick)
    batches = batched(run.row_blocks(plan.block_rows), plan.block_rows)
    starts = np.cumsum([0, *map(len, batches)]).tolist()
    tiles = [tile for task in tasks for tile in task.tiles]
    operations = plan.operations(tiles) / len(batches)
    parts = 1 if recipe.parts is None else len(recipe.parts)
    whole, done, last, seconds = None, 0, 0, 0.0
    if saved is not None:
        whole = saved.partial
        done = next(k for k, batch in enumerate(batches) if batch[0].out.start == saved.rows)
        if tick is not None:
            tick(saved.rows * len(tiles))
    while done < len(batches):
        begun = time.monotonic()
        stop = min(done + checkpoints.batches(last, seconds, operations), len(batches))
        stretch = [replace(task, first=starts[done], stop=starts[stop]) for task in tasks]
        whole = run_tasks(run, plan, stretch, recipe, client, tick, whole)
        last, seconds, done = stop - done, time.monotonic() - begun, stop
        if done < len(batches) and checkpoints.due():
            rows = int(batches[done][0].out.start)
            checkpoints.write(rows, dict(recipe.shift), whole, parts)
    assert whole is not None
    return whole


def row_starts(run: RowSource, plan: Plan) -> list[int]:
    """Rows from which a pass can go on."""
    batches = batched(run.row_blocks(plan.block_rows), plan.block_rows)
    return [int(batch[0].out.start) for batch in batches[1:]]


def run_tasks(
    run: RowSource,
    plan: Plan,
    tasks: Sequence[Task],
    recipe: Recipe,
    client: Any,
    tick: Tick | None,
    into: Partial | None = None,
) -> Partial:
    """The tiles of some tasks, added up over row ranges, and added to `into` where it is given."""
    if client is not None:
        return _on_cluster(run, plan, tasks, recipe, client, tick, into)
    delayed = [
        dask.delayed(_run_task, pure=False, traverse=False)(
            run, plan.columns, task, plan.block_rows, recipe, tick, _share(into, task)
        )
        for task in tasks
    ]
    with one_blas_thread():
        results = dask.compute(
            *delayed, scheduler="threads", num_workers=plan.workers, optimize_graph=False
        )
    whole = Partial({}, {})
    for result in results:
        whole.add(result)
    return whole


def _on_cluster(
    run: RowSource,
    plan: Plan,
    tasks: Sequence[Task],
    recipe: Recipe,
    client: Any,
    tick: Tick | None,
    into: Partial | None,
) -> Partial:
    """What a worker finishes is fetched and added at once."""
    whole = into or Partial({}, {})
    for found in _from_workers(run, plan, tasks, recipe, client, tick, None):
        whole.add(_own(found))
    return whole


def write_on_cluster(
    run: RowSource,
    plan: Plan,
    number: int,
    recipe: Recipe,
    client: Any,
    tick: Tick,
    tiles: TiledGram,
) -> None:
    """One pass's tiles, written by the workers that make them; those that are there are not made
    again."""
    missing = []
    for task in plan.of_pass(number):
        if tiles.has(task.tiles):
            tick(_rows(run, plan, task) * len(task.tiles))
        else:
            missing.append(task)
    for pairs in _from_workers(run, plan, missing, recipe, client, tick, tiles):
        tiles.note(pairs)


def _from_workers(
    run: RowSource,
    plan: Plan,
    tasks: Sequence[Task],
    recipe: Recipe,
    client: Any,
    tick: Tick | None,
    tiles: TiledGram | None,
) -> Iterator[Any]:
    """What each task gives, in the order in which they end; what a dead worker had begun is done
    again by another."""
    try:
        from distributed import as_completed
    except ImportError:
        raise MissingDependencyError(
            "client= needs the package distributed: pip install 'actstore[cluster]'"
        ) from None
    futures = {
        client.submit(
            _on_worker, run, plan.columns, task, plan.block_rows, recipe, tiles, pure=False
        ): task
        for task in tasks
    }
    try:
        for future in as_completed(futures):
            task = futures[future]
            yield future.result()
            future.release()
            if tick is not None:
                tick(_rows(run, plan, task) * len(task.tiles))
    finally:
        client.cancel(list(futures))


def _on_worker(
    run: RowSource,
    columns: Columns,
    task: Task,
    block_rows: int,
    recipe: Recipe,
    tiles: TiledGram | None,
) -> Partial | list[tuple[int, int]]:
    """A task's tiles; or, once they are written, their pairs."""
    found = _run_task(run, columns, task, block_rows, recipe, None, None)
    return found if tiles is None else tiles.write(found)


def _own(fetched: Partial) -> Partial:
    """With arrays that can be added to: those that came over a wire may be read-only."""
    return Partial(
        {k: v if v.flags.writeable else v.copy() for k, v in fetched.tiles.items()},
        {k: v if v.flags.writeable else v.copy() for k, v in fetched.sums.items()},
    )


def _rows(run: RowSource, plan: Plan, task: Task) -> int:
    blocks = run.row_blocks(plan.block_rows)
    return int(blocks[task.stop - 1].out.stop - blocks[task.first].out.start)


def _share(into: Partial | None, task: Task) -> Partial | None:
    """What of some sums is a task's; the arrays are given away."""
    if into is None:
        return None
    tiles = {key: into.tiles.pop(key) for key in list(into.tiles) if key[1] in task.tiles}
    rows = {tile.row for tile in task.tiles if tile.diagonal}
    return Partial(tiles, {key: into.sums.pop(key) for key in list(into.sums) if key[1] in rows})


def _run_task(
    run: RowSource,
    columns: Columns,
    task: Task,
    block_rows: int,
    recipe: Recipe,
    tick: Tick | None,
    into: Partial | None,
) -> Partial:
    blocks = run.row_blocks(block_rows)[task.first : task.stop]
    on_batch = None if tick is None else partial(_tick, tick, len(task.tiles))
    return accumulate(run, columns, task.tiles, blocks, recipe, block_rows, on_batch, into)


def _tick(tick: Tick, tiles: int, rows: int) -> None:
    tick(tiles * rows)


@contextmanager
def ticks(plan: Plan, progress: bool | None) -> Iterator[Tick]:
    """A counter of finished work for the bar, which also ends the other tasks once one has
    failed."""
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
