"""From a run to its Gram: one pass over the rows, dask running the plan's tasks."""

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
from actstore.grams.caching import read_cached, write_cached
from actstore.grams.columns import Columns, select_columns
from actstore.grams.kernel import Partial, accumulate
from actstore.grams.parts import Parts, make_parts
from actstore.grams.planning import Plan, Task, make_plan
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram, sum_of
from actstore.grams.threads import one_blas_thread

PRECISIONS = {"auto": "float64", "float64": "float64", "float32": "float32"}


def gram(
    run: RowSource,
    *,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    precision: str = "auto",
    memory: int | str | None = None,
    parts: Any = None,
    cache: bool = True,
    progress: bool | None = None,
    client: Any = None,
) -> Gram:
    """Sufficient statistics of every pair of layers of a run, in one pass over its rows.

    With Z = [z₀ | z₁ | … | z_L], every XᵀX and XᵀY that least squares between two layers needs
    is a block of ZᵀZ; the symmetric half is computed, in memory that does not depend on the
    number of rows.

    Parameters
    ----------
    run : Run
        Or anything else with a Run's ``row_blocks`` and ``read``.
    sites : str or sequence of str, optional
        Default: ``resid`` where the run has it, else every site in view.
    layers : sequence of int, optional
        Default: all in view; negative ones count from the last.
    precision : {"auto", "float64", "float32"}
        Of the products. "auto" is float64, exact to about 1e-15 of each column's spread.
        "float32" takes less than half the time and keeps some 7 digits; it is recorded in the
        result. Sums are float64 either way.
    memory : int or str, optional
        Budget in bytes, or as ``"4GiB"``.
    parts : int, str, (str, int) or (n_samples,) array, optional
        Keep the statistics of parts of the rows as well, in ``Gram.parts``: ``10`` for ten
        folds of whole documents, ``("article", 10)`` for folds of another sample coordinate's
        groups, ``"document"`` or any coordinate for a part for each of its values, or the part
        of each sample. Each part takes the memory of a Gram. Cross-validation and intervals
        then need no second reading.
    cache : bool
        Whether to keep the result in the run's store, and to use what is kept there.
    progress : bool, optional
        Default: a bar on a terminal.
    client : distributed.Client, optional
        Runs the same tasks on a cluster. Default: threads of this process.

    Returns
    -------
    Gram

    Raises
    ------
    SiteError
        A site or layer that is not in view.
    GramError
        No rows, an unknown precision or division in parts, or too little memory allowed.
    NonFiniteError
        NaN or infinity among the activations, naming layer and rows.
    CorruptionError
        Stored activations have changed on disk.
    """
    dtype = _dtype(precision)
    columns = select_columns(run, sites, layers)
    division = None if parts is None else make_parts(run, parts)
    if cache:
        kept = read_cached(run, columns, dtype, division)
        every = select_columns(run, columns.sites, None)
        if kept is None and every != columns:
            kept = read_cached(run, every, dtype, division, only=columns)
        if kept is not None:
            kept.run, kept.provenance = run, _provenance(run, dtype)
            for part in kept.parts:
                part.provenance = _part_provenance(run, dtype, part.provenance["part"], part.n)
            return kept
    plan = make_plan(
        run, columns, dtype=dtype, memory=memory, parts=0 if division is None else len(division)
    )
    found = compute_gram(run, plan, division, progress=progress, client=client)
    if cache:
        write_cached(run, found, dtype, division)
    return found


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
    columns = plan.columns
    blocks = run.row_blocks(plan.block_rows)
    shift = first_means(run, columns, blocks[0])
    with _ticks(plan, progress, client) as tick:
        tasks = [
            dask.delayed(_run_task, pure=False, traverse=False)(
                run, columns, task, plan.block_rows, shift, plan.dtype, tick, parts
            )
            for task in plan.tasks
        ]
        if client is not None:
            results = client.gather(client.compute(tasks))
        else:
            with one_blas_thread():
                results = dask.compute(
                    *tasks, scheduler="threads", num_workers=plan.workers, optimize_graph=False
                )
    whole = results[0]
    for other in results[1:]:
        whole.add(other)
    return _assemble(run, plan, whole, shift, parts)


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
    shift: dict[int, np.ndarray],
    dtype: str,
    tick: Callable[[int], object] | None,
    parts: Parts | None,
) -> Partial:
    blocks = run.row_blocks(block_rows)[task.first : task.stop]
    on_batch = None if tick is None else partial(_tick, tick, len(task.tiles))
    return accumulate(run, columns, task.tiles, blocks, shift, block_rows, dtype, on_batch, parts)


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
    for (part, tile), values in whole.tiles.items():
        at = 0
        for k in range(tile.start, tile.stop):
            held[part][tile.row, k] = values[:, at : at + columns[k].width]
            at += columns[k].width
    shifts = [shift[k] for k in order]
    totals = [[whole.sums[part, k] for k in order] for part in range(len(held))]
    provenance = _provenance(run, plan.dtype)
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
            provenance=_part_provenance(run, plan.dtype, label, n),
        )
        for part, (label, n) in enumerate(zip(parts.labels, parts.sizes, strict=True))
    ]
    return sum_of(grams, provenance, run)


def _provenance(run: RowSource, precision: str) -> dict[str, Any]:
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


def _part_provenance(run: RowSource, precision: str, label: str, n: int) -> dict[str, Any]:
    whole = _provenance(run, precision)
    return {**whole, "part": label, "runs": [{**whole["runs"][0], "n": n, "part": label}]}


def _dtype(precision: str) -> str:
    try:
        return PRECISIONS[precision]
    except KeyError:
        raise GramError(
            f"precision={precision!r} is not known: choose one of {', '.join(PRECISIONS)}"
        ) from None


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
