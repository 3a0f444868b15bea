"""A Gram by dask's threads and by a LocalCluster of two, against a plain loop over the same tasks.

The plain loop hands the same tasks to a pool of threads and puts the tiles together. The workers
of the cluster are processes with one thread each, started before; what they find comes back to
this process.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import actstore
from actstore.grams import Gram, compute_gram, make_plan
from actstore.grams.arithmetic import Recipe
from actstore.grams.columns import select_columns
from actstore.grams.executing import first_means
from actstore.grams.kernel import Partial, accumulate
from actstore.grams.plans import Plan, Task
from benchmarks.harness import Measured, cores, goal, measure, table
from benchmarks.streams import write_stream

MOST = 1.25


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    workers = options.workers
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        place = Path(folder) / "s.zarr"
        run = write_stream(place, options.layers, options.width, options.rows, "float16")
        plan = make_plan(run, select_columns(run, None, None), workers=workers)
        _warm(run, client)
        ways: dict[str, Callable[[], Any]] = {
            "a plain loop over the tasks": lambda: _plain(run, plan),
            "dask, threads": lambda: compute_gram(run, plan, progress=False),
            f"LocalCluster of {workers}": lambda: compute_gram(
                run, plan, progress=False, client=client
            ),
        }
        found = _in_turn(ways, options.repeats)
    print(
        f"{options.layers} layers × {options.width} × {options.rows:,} float16 rows, "
        f"{len(plan.tasks)} tasks, {cores()} cores"
    )
    plain, threads, workers_ = found
    print(table(found, plain, ["", "", "CPU time of this process alone"]))
    for told, one in (("dask, threads", threads), ("LocalCluster", workers_)):
        if not np.array_equal(one.result.blocks[0, 1], _first(plain.result, plan)):
            raise SystemExit(f"{told} gives other numbers")
        print(goal(f"× the plain loop, {told}", one.seconds / plain.seconds, MOST, most=True))


def _plain(run: actstore.Run, plan: Plan) -> Partial:
    """Every task, as many at a time as there are workers, and nothing else."""
    blocks = run.row_blocks(plan.block_rows)
    recipe = Recipe(first_means(run, plan.columns, blocks[0]))

    def one(task: Task) -> Partial:
        return accumulate(run, plan.columns, task.tiles, blocks, recipe, plan.block_rows)

    whole = Partial({}, {})
    with ThreadPoolExecutor(plan.workers) as pool:
        for part in pool.map(one, plan.tasks):
            whole.add(part)
    return whole


def _first(whole: Partial, plan: Plan) -> np.ndarray:
    return next(values for _, pair, values in whole.blocks(plan.columns) if pair == (0, 1))


def _warm(run: actstore.Run, client: Client) -> Gram:
    few = run.isel(sample=slice(0, 512)).sel(layer=[0, 1])
    return actstore.gram(few, client=client, cache=False, progress=False)


def _in_turn(ways: dict[str, Callable[[], Any]], repeats: int) -> list[Measured]:
    best: dict[str, Measured] = {}
    for _ in range(repeats):
        for name, call in ways.items():
            found = measure(name, call)
            if name not in best or found.seconds < best[name].seconds:
                best[name] = found
    return list(best.values())


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks schedulers", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=13)
    add("--width", type=int, default=768)
    add("--rows", type=int, default=60_000)
    add("--workers", type=int, default=2)
    add("--repeats", type=int, default=2)
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
