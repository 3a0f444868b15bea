"""From a run to its Gram: kept in the store, or computed in a pass over the rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from actstore.errors import GramError
from actstore.grams.caching import cache_key, kept_as, read_cached, write_cached
from actstore.grams.checkpoints import EVERY, Checkpoints
from actstore.grams.columns import Columns, select_columns
from actstore.grams.executing import compute_gram, compute_tiled, part_provenance, provenance_of
from actstore.grams.pairs import needed_blocks
from actstore.grams.parts import Parts, make_parts
from actstore.grams.planning import make_plan
from actstore.grams.plans import Plan
from actstore.grams.sizes import parse_size, physical_memory
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.torch_arithmetic import check_device
from actstore.grams.weights import Weights, make_weights

PRECISIONS = {"auto": "float64", "float64": "float64", "float32": "float32", "sketch": "sketch"}


def gram(
    run: RowSource,
    *,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    pairs: str | Iterable[Any] | None = None,
    precision: str = "auto",
    memory: int | str | None = None,
    parts: Any = None,
    weights: Any = None,
    device: str | None = None,
    sketch_seed: int = 0,
    cache: bool = True,
    checkpoint: float | None = EVERY,
    progress: bool | None = None,
    client: Any = None,
) -> Gram:
    """Sufficient statistics of every pair of layers of a run, or of some, in one pass over its
    rows.

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
    pairs : str or iterable of (source, target), optional
        As for `actstore.fit`: only the moments that maps between these pairs and their scores
        take: of "to_last" and "adjacent" some three blocks a layer, instead of as many as there
        are layers. "within": no pairs, each layer's own moments alone. Default: all.
    precision : {"auto", "float64", "sketch", "float32"}
        Of the products. "auto" is float64, exact to about 1e-15 of each column's spread.
        "sketch" multiplies in float32 rows that a factor of some random rows has whitened: r²
        within 1e-6 per coordinate, whatever the columns are like, as its guard sees to; see
        `actstore.grams.sketching`. "float32" takes less than half the time and keeps some 7
        digits of well-conditioned moments. All is recorded in the result, and sums are float64.
    memory : int or str, optional
        Budget in bytes, or as ``"4GiB"``. A Gram that takes more is made in several passes over
        some of the layers each, put in the run's store tile by tile, and read from there block
        by block; work that was interrupted goes on with the passes that are missing.
    parts : int, str, (str, int) or (n_samples,) array, optional
        Keep the statistics of parts of the rows as well, in ``Gram.parts``: ``10`` for ten
        folds of whole documents, ``("article", 10)`` for folds of another sample coordinate's
        groups, ``"document"`` or any coordinate for a part for each of its values, or the part
        of each sample. Each part takes the memory of a Gram; more than the machine has are made
        in passes and left on disk. Cross-validation and intervals then need no second reading.
    weights : (n_samples,) array of float ≥ 0, or str, optional
        How often each row counts, or the name of a numeric sample coordinate that says so: sums,
        means and moments are Σ w z and Σ w zzᵀ, and ``Gram.n`` is Σ w. Default: once.
    device : str, optional
        A torch device, ``"cuda"`` or ``"cpu"``, that computes the products. Default: numpy, which
        is faster on a CPU. A pass's tiles and a task's rows lie in its memory.
    sketch_seed : int
        Of the rows that "sketch" draws.
    cache : bool
        Whether to keep the result in the run's store, and to use what is kept there.
    checkpoint : float, optional
        Seconds between copies of the sums so far, which are kept beside the run while a long
        computation goes on and take a Gram's room there, two while one is written: the same call
        after an interruption goes on from the last. They come less often where one takes more
        than 1/50 of that to write. None, or ``cache=False``: no copies.
    progress : bool, optional
        Default: a bar on a terminal.
    client : distributed.Client, optional
        Runs the same tasks on a cluster, one for each of its threads; what a lost worker had
        begun is done by another. `memory` is then that of all its workers, by default what dask
        allows them; what they make in several passes, or is more than half of what this machine
        has, they write to the run's store themselves. Default: threads of this process.

    Returns
    -------
    Gram
        `plan_gram` tells beforehand what it takes.

    Raises
    ------
    SiteError
        A site or layer that is not in view.
    GramError
        No rows, an unknown precision, division in parts, weights or device, or too little memory
        allowed.
    NonFiniteError
        NaN or infinity among the activations, naming layer and rows.
    CorruptionError
        Stored activations have changed on disk.
    """
    warn_if_partial(run)
    dtype = _dtype(precision)
    columns = select_columns(run, sites, layers)
    blocks = needed_blocks(columns, pairs)
    division = None if parts is None else make_parts(run, parts)
    counts = None if weights is None else make_weights(run, weights, division)
    if device is not None:
        check_device(device)
    if dtype == "sketch" and getattr(run, "sequential", False):
        raise GramError(
            "precision='sketch' reads some rows before all of them, and these are made by a model "
            "as they are read: extract them first, or take precision='float64'"
        )
    here: float = physical_memory() or float("inf")
    room = here if memory is None else parse_size(memory)
    if cache:
        kind = kept_as(dtype, sketch_seed)
        kept = _kept(run, columns, kind, division, counts, room, blocks)
        if kept is not None:
            return _brought_back(kept, run, dtype, division, counts)
    workers = _workers(client, device)
    budget = _of_workers(client) if memory is None else memory
    plan = _plan(run, columns, dtype, budget, division, cache, workers, blocks)
    _check_passes(run, plan, memory)
    how: dict[str, Any] = {
        "weights": counts,
        "device": device,
        "sketch_seed": sketch_seed,
        "progress": progress,
        "client": client,
    }
    # What a cluster makes in one pass need not fit here.
    size = plan.gram_bytes * (plan.parts + 1)
    large = client is not None and _has_place(run, cache) and size > here / 2
    if plan.passes > 1 or large:
        return compute_tiled(run, plan, division, **how)
    checkpoints = None
    if cache and checkpoint is not None and dtype != "sketch":
        key = cache_key(run, columns, dtype, division, counts, blocks)
        checkpoints = Checkpoints(run, key, columns, checkpoint)
    found = compute_gram(run, plan, division, checkpoints=checkpoints, **how)
    if cache:
        kept_now = write_cached(run, found, kind, division, counts, blocks)
        if kept_now and checkpoints is not None:
            checkpoints.clear()
    return found


def _kept(
    run: RowSource,
    columns: Columns,
    kind: str,
    parts: Parts | None,
    weights: Weights | None,
    memory: float,
    blocks: frozenset[tuple[int, int]] | None,
) -> Gram | None:
    """What is kept of just these blocks, or of more layers or pairs."""
    if blocks is not None:
        found = read_cached(run, columns, kind, parts, weights, memory=memory, blocks=blocks)
        if found is not None:
            return found
    found = read_cached(run, columns, kind, parts, weights, memory=memory, wanted=blocks)
    every = select_columns(run, columns.sites, None)
    if found is None and every != columns:
        found = read_cached(run, every, kind, parts, weights, columns, memory=memory, wanted=blocks)
    return found


def _brought_back(
    kept: Gram, run: RowSource, dtype: str, parts: Parts | None, weights: Weights | None
) -> Gram:
    """A Gram that was kept, as if it had just been computed from this run."""
    sketch = kept.provenance["runs"][0].get("sketch")
    kept.run, kept.provenance = run, provenance_of(run, dtype, weights, sketch)
    kept.weights = None if weights is None else weights.values
    for number, part in enumerate(kept.parts):
        assert parts is not None
        part.provenance = part_provenance(kept.provenance, parts, number, weights)
    return kept


def plan_gram(
    run: RowSource,
    *,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    pairs: str | Iterable[Any] | None = None,
    precision: str = "auto",
    memory: int | str | None = None,
    parts: Any = None,
    device: str | None = None,
    cache: bool = True,
    workers: int | None = None,
) -> Plan:
    """What `gram` with these arguments would do where nothing is kept yet; no row is read.

    ``print(plan_gram(run, memory="4GiB").describe())`` shows passes, tasks, operations, bytes read
    and peak memory.

    Parameters
    ----------
    run, sites, layers, pairs, precision, memory, parts, device, cache
        As for `gram`; `memory` is that of all workers together.
    workers : int, optional
        How many tasks run at the same time: the threads of a cluster. Default: the cores that
        this process may use.

    Returns
    -------
    Plan

    Raises
    ------
    SiteError, GramError
        As from `gram`.
    """
    columns = select_columns(run, sites, layers)
    division = None if parts is None else make_parts(run, parts)
    workers = _workers(None, device) if workers is None else workers
    blocks = needed_blocks(columns, pairs)
    return _plan(run, columns, _dtype(precision), memory, division, cache, workers, blocks)


def _plan(
    run: RowSource,
    columns: Columns,
    dtype: str,
    memory: int | str | None,
    parts: Parts | None,
    cache: bool,
    workers: int | None,
    blocks: frozenset[tuple[int, int]] | None = None,
) -> Plan:
    if parts is not None and memory is None:
        # Many Grams at once: better in passes than ended by the system.
        memory = physical_memory()
    return make_plan(
        run,
        columns,
        dtype=dtype,
        memory=memory,
        workers=workers,
        parts=0 if parts is None else len(parts),
        tiled=_has_place(run, cache),
        blocks=blocks,
    )


def _has_place(run: RowSource, cache: bool) -> bool:
    return cache and hasattr(run, "cache_group")


def _of_workers(client: Any) -> int | None:
    """Memory that the workers of a cluster may use together, short of where dask pauses them;
    None where they have no limit."""
    if client is None:
        return None
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers]
    return int(0.7 * sum(limits)) if limits and all(limits) else None


def _workers(client: Any, device: str | None) -> int | None:
    """Tasks at the same time: a cluster's threads, or 1 on a device, whose own threads share one
    task's work; None for what this process may use."""
    if client is not None:
        return max(sum(client.nthreads().values()), 1)
    return None if device is None else 1


def _check_passes(run: RowSource, plan: Plan, memory: int | str | None) -> None:
    """GramError where rows would have to be made more often than was allowed."""
    allowed = getattr(run, "passes", plan.passes)
    if plan.passes > allowed:
        raise GramError(
            f"memory={memory!r} takes {plan.passes} passes, and each runs the model over the "
            f"corpus again: allow more memory, or say passes={plan.passes}"
        )


def _dtype(precision: str) -> str:
    try:
        return PRECISIONS[precision]
    except KeyError:
        raise GramError(
            f"precision={precision!r} is not known: choose one of {', '.join(PRECISIONS)}"
        ) from None


def warn_if_partial(run: RowSource) -> None:
    """Say that only a part of the rows is there, where that is so."""
    state = getattr(run, "state", "complete")
    if not state.startswith("complete"):
        warnings.warn(
            f"{run.model}/{run.corpus} is not whole ({state}): what is computed from it is of the "
            "rows committed so far",
            stacklevel=3,
        )
