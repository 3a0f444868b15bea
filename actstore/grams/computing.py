"""From a run to its Gram: kept in the store, or computed in a pass over the rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from actstore.errors import GramError
from actstore.grams.caching import read_cached, write_cached
from actstore.grams.columns import Columns, select_columns
from actstore.grams.executing import compute_gram, compute_tiled, part_provenance, provenance_of
from actstore.grams.parts import Parts, make_parts
from actstore.grams.planning import Plan, make_plan
from actstore.grams.sizes import parse_size, physical_memory
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram

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
        Budget in bytes, or as ``"4GiB"``. A Gram that takes more is made in several passes over
        some of the layers each, put in the run's store tile by tile, and read from there block
        by block; work that was interrupted goes on with the passes that are missing.
    parts : int, str, (str, int) or (n_samples,) array, optional
        Keep the statistics of parts of the rows as well, in ``Gram.parts``: ``10`` for ten
        folds of whole documents, ``("article", 10)`` for folds of another sample coordinate's
        groups, ``"document"`` or any coordinate for a part for each of its values, or the part
        of each sample. Each part takes the memory of a Gram, and more than the machine has is
        refused. Cross-validation and intervals then need no second reading.
    cache : bool
        Whether to keep the result in the run's store, and to use what is kept there.
    progress : bool, optional
        Default: a bar on a terminal.
    client : distributed.Client, optional
        Runs the same tasks on a cluster. Default: threads of this process.

    Returns
    -------
    Gram
        `plan_gram` tells beforehand what it takes.

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
    warn_if_partial(run)
    dtype = _dtype(precision)
    columns = select_columns(run, sites, layers)
    division = None if parts is None else make_parts(run, parts)
    room = float("inf") if memory is None else parse_size(memory)
    if cache:
        kept = read_cached(run, columns, dtype, division, memory=room)
        every = select_columns(run, columns.sites, None)
        if kept is None and every != columns:
            kept = read_cached(run, every, dtype, division, only=columns, memory=room)
        if kept is not None:
            kept.run, kept.provenance = run, provenance_of(run, dtype)
            for part in kept.parts:
                part.provenance = part_provenance(run, dtype, part.provenance["part"], part.n)
            return kept
    plan = _plan(run, columns, dtype, memory, division, cache)
    if plan.passes > 1:
        return compute_tiled(run, plan, progress=progress, client=client)
    found = compute_gram(run, plan, division, progress=progress, client=client)
    if cache:
        write_cached(run, found, dtype, division)
    return found


def plan_gram(
    run: RowSource,
    *,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    precision: str = "auto",
    memory: int | str | None = None,
    parts: Any = None,
    cache: bool = True,
) -> Plan:
    """What `gram` with these arguments would do where nothing is kept yet; no row is read.

    ``print(plan_gram(run, memory="4GiB").describe())`` shows passes, tasks, operations, bytes read
    and peak memory.

    Parameters
    ----------
    run, sites, layers, precision, memory, parts, cache
        As for `gram`.

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
    return _plan(run, columns, _dtype(precision), memory, division, cache)


def _plan(
    run: RowSource,
    columns: Columns,
    dtype: str,
    memory: int | str | None,
    parts: Parts | None,
    cache: bool,
) -> Plan:
    if parts is not None and memory is None:
        # Many Grams at once: better refused than ended by the system.
        memory = physical_memory()
    return make_plan(
        run,
        columns,
        dtype=dtype,
        memory=memory,
        parts=0 if parts is None else len(parts),
        tiled=cache and hasattr(run, "cache_group"),
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
