"""Running a plan pass by pass, and the Gram put together from its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from actstore import __version__
from actstore.errors import GramError
from actstore.grams.arithmetic import Recipe
from actstore.grams.caching import cache_group, cache_key, kept_as
from actstore.grams.checkpoints import Checkpoints
from actstore.grams.columns import Columns
from actstore.grams.kernel import Partial
from actstore.grams.parts import Parts
from actstore.grams.plans import Plan, Task
from actstore.grams.running import Tick, row_starts, run_pass, run_tasks, ticks, write_on_cluster
from actstore.grams.sketching import Sketched
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.sums import sum_of
from actstore.grams.tiles import TiledGram
from actstore.grams.weights import Weights
from actstore.grams.whitening import draw


def compute_gram(
    run: RowSource,
    plan: Plan,
    parts: Parts | None = None,
    *,
    weights: Weights | None = None,
    device: str | None = None,
    sketch_seed: int = 0,
    progress: bool | None = None,
    client: Any = None,
    checkpoints: Checkpoints | None = None,
) -> Gram:
    """Run a plan's tasks and put their tiles together.

    Parameters
    ----------
    run : RowSource
    plan : Plan
        From `make_plan`.
    parts : Parts, optional
        What to keep apart, as many parts as the plan was made for.
    weights : Weights, optional
    device, sketch_seed, progress, client
        As for `gram`.
    checkpoints : Checkpoints, optional
        Where finished ranges of rows are kept, to go on from after an interruption.

    Returns
    -------
    Gram
    """
    if plan.passes > 1:
        raise GramError(
            f"the plan makes {plan.passes} passes, which need a place on disk: "
            "use gram(run, memory=..., cache=True)"
        )
    if plan.dtype == "sketch":
        shaped = Recipe({}, plan.dtype, None, _values(weights), parts, device)
        with ticks(plan, progress) as tick:
            sketched = _sketch(run, plan, shaped, sketch_seed, client, tick)
            tasks = plan.of_pass(0)
            whole = sketched.tiles(tasks, sketched.settle(tasks))
        shift = sketched.whitening.shift
        return _assemble(run, plan, whole, shift, parts, weights, sketched.record())
    saved = None
    if checkpoints is not None:
        count = 1 if parts is None else len(parts)
        saved = checkpoints.read(plan.tiles, count, row_starts(run, plan))
    if saved is not None:
        shift = saved.shift
    else:
        shift = first_means(run, plan.columns, run.row_blocks(plan.block_rows)[0])
    recipe = Recipe(shift, plan.dtype, None, _values(weights), parts, device)
    with ticks(plan, progress) as tick:
        whole = run_pass(run, plan, 0, recipe, client, tick, checkpoints, saved)
    return _assemble(run, plan, whole, shift, parts, weights)


def _sketch(
    run: RowSource,
    plan: Plan,
    recipe: Recipe,
    seed: int,
    client: Any,
    tick: Tick,
    shift: dict[int, np.ndarray] | None = None,
) -> Sketched:
    """What makes a plan's tiles by whitened products."""

    def make(tasks: Sequence[Task], how: Recipe, first: bool) -> Partial:
        return run_tasks(run, plan, tasks, how, client, tick if first else None)

    whitening = draw(run, plan.columns, seed, recipe.weights, shift)
    n = run.n_samples if recipe.weights is None else float(recipe.weights.sum())
    recipe = replace(recipe, shift=whitening.shift)
    return Sketched(plan.columns, recipe, whitening, n, plan.n_blocks, make)


def compute_tiled(
    run: RowSource,
    plan: Plan,
    parts: Parts | None = None,
    *,
    weights: Weights | None = None,
    device: str | None = None,
    sketch_seed: int = 0,
    progress: bool | None = None,
    client: Any = None,
) -> Gram:
    """Run a plan pass by pass, each pass's tiles put on disk beside the run.

    Returns
    -------
    Gram
        Its blocks are read when they are used.
    """
    kind = kept_as(plan.dtype, sketch_seed)
    key = cache_key(run, plan.columns, kind, parts, weights, plan.blocks)
    group = cache_group(run, key, create=True)
    if group is None:
        raise GramError(
            f"{run.model}/{run.corpus} has no place on disk for tiles of a Gram: allow more memory"
        )
    tiles = TiledGram(group, plan.columns, plan.parts, plan.blocks)
    shift = tiles.shift()
    recipe = Recipe({}, plan.dtype, None, _values(weights), parts, device)
    sketched = None
    with ticks(plan, progress) as tick:
        if plan.dtype == "sketch":
            sketched = _sketch(run, plan, recipe, sketch_seed, client, tick, shift)
            sketched.settle_diagonals()
            shift = shift or tiles.begin(sketched.whitening.shift)
        elif shift is None:
            shift = tiles.begin(first_means(run, plan.columns, run.row_blocks(plan.block_rows)[0]))
        recipe = replace(recipe, shift=shift)
        for number in range(plan.passes):
            own = [tile for task in plan.of_pass(number) for tile in task.tiles]
            if tiles.has(own):
                tick(len(own) * run.n_samples)
            elif sketched is not None:
                tiles.write(sketched.tiles(plan.of_pass(number)))
            elif client is not None and tiles.shared:
                write_on_cluster(run, plan, number, recipe, client, tick, tiles)
            else:
                tiles.write(run_pass(run, plan, number, recipe, client, tick))
    record = None if sketched is None else sketched.record()
    provenance = provenance_of(run, plan.dtype, weights, record)
    divided = [] if parts is None else _part_sizes(parts, weights)
    origins = [
        (n, part_provenance(provenance, parts, part, weights))  # type: ignore[arg-type]
        for part, n in enumerate(divided)
    ]
    found = tiles.finish(run, _size(run, weights), provenance, {"key": key}, origins)
    found.weights = _values(weights)
    return found


def _size(run: RowSource, weights: Weights | None) -> float:
    return run.n_samples if weights is None else float(weights.values.sum())


def _part_sizes(parts: Parts, weights: Weights | None) -> list[float]:
    return list(parts.sizes) if weights is None else weights.sums(parts).tolist()


def _values(weights: Weights | None) -> np.ndarray | None:
    return None if weights is None else weights.values


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


def _assemble(
    run: RowSource,
    plan: Plan,
    whole: Partial,
    shift: dict[int, np.ndarray],
    parts: Parts | None,
    weights: Weights | None,
    sketch: dict[str, Any] | None = None,
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
    provenance = provenance_of(run, plan.dtype, weights, sketch)
    if parts is None:
        n = _size(run, weights)
        found = Gram(columns, n, shifts, totals[0], held[0], provenance=provenance, run=run)
    else:
        grams = [
            Gram(
                columns,
                n,
                shifts,
                totals[part],
                held[part],
                provenance=part_provenance(provenance, parts, part, weights),
            )
            for part, n in enumerate(_part_sizes(parts, weights))
        ]
        found = sum_of(grams, provenance, run)
    found.weights = _values(weights)
    return found


def provenance_of(
    run: RowSource,
    precision: str,
    weights: Weights | None = None,
    sketch: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Of a Gram; a run's ``n`` counts the rows that weigh anything."""
    described = run.info().get("key", {}).get("model", {})
    fingerprint = described.get("fingerprint") if isinstance(described, dict) else None
    entry: dict[str, Any] = {
        "model": run.model,
        "corpus": run.corpus,
        "key": run.key(),
        "n": run.n_samples if weights is None else int(np.count_nonzero(weights.values)),
        "sign": 1,
    }
    if weights is not None:
        entry["weights"] = {"name": weights.name, "sha256": weights.digest()}
    if sketch is not None:
        entry["sketch"] = sketch
    return {
        "model": run.model,
        "model_fingerprint": fingerprint,
        "runs": [entry],
        "precision": precision,
        "versions": {"actstore": __version__, "numpy": np.__version__},
    }


def part_provenance(
    whole: dict[str, Any], parts: Parts, part: int, weights: Weights | None
) -> dict[str, Any]:
    """Of one part of a Gram."""
    label, counted = parts.labels[part], parts.numbers == part
    if weights is not None:
        counted &= weights.values > 0
    n = int(np.count_nonzero(counted))
    return {**whole, "part": label, "runs": [{**whole["runs"][0], "n": n, "part": label}]}
