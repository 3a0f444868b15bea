"""Least squares between layers: one factorisation of a source layer serves all its targets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from actstore.fitting.inputs import as_gram, by_source, one_ridge, ridge_values, shared_out
from actstore.fitting.lazy import SolvedMaps
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.problem import Problem, Solved
from actstore.fitting.reduced_rank import check_rank
from actstore.fitting.validation import FOLDS, choose_ridges
from actstore.grams.pairs import layers_of, resolve_pairs
from actstore.grams.sizes import physical_memory
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.threads import available_cores, one_blas_thread


def fit(
    on: Gram | RowSource,
    *,
    pairs: str | Iterable[Any] = "all",
    ridge: float | Sequence[float] = 0.0,
    intercept: bool = False,
    rank: int | None = None,
    weights: Any = None,
    lazy: bool | None = None,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    progress: bool | None = None,
) -> MapSet:
    """Fit a linear map between every pair of layers asked for.

    A = argmin Σ‖x A − y‖² + α‖A‖², by default with neither intercept nor ridge: the map called
    *mat* in "Jump to Conclusions" (arXiv 2303.09435) §2. Where the source's rows do not
    determine A, the solution of smallest norm is taken.

    A source layer that is safely of full rank is solved from its moments by Cholesky. One that
    is not is solved from its rows by SVD, with the cut-off of `numpy.linalg.lstsq`; if only a
    Gram is at hand, from the moments' eigenvalues, with a warning. Each map says which
    (`LinearMap.method`), with its rank and condition. Nothing is ever added to the diagonal but
    `ridge`.

    Parameters
    ----------
    on : Run or Gram
        A Gram just computed remembers its run and can use its rows.
    pairs : {"all", "adjacent", "to_last", "ordered"} or list of (source, target)
        "all": every source before its target; "ordered": backwards too.
    ridge : float or sequence of float
        α ≥ 0, as scikit-learn's ``Ridge(alpha=)``; an intercept is not penalised. Of several, each
        pair takes the one of highest cross-validated r² (`cross_validate`), over the parts of
        a Gram or over five folds of a run's documents.
    intercept : bool
    rank : int, optional
        Highest rank of a map: reduced-rank regression, see `actstore.fitting.reduced_rank`.
    weights : (n_samples,) array of float ≥ 0, or str, optional
        Of the squared errors, where a run is given, as scikit-learn's ``sample_weight``; or the
        name of a numeric sample coordinate.
    lazy : bool, optional
        Whether each map is solved when it is asked for and not kept, as suits a Gram on disk whose
        maps would not fit in memory: they are scored and saved one by one all the same. Default:
        where they would take more than a quarter of the machine's memory.
    sites, layers : optional
        As for `actstore.gram`, where a run is given.
    progress : bool, optional
        Default: a bar on a terminal.

    Returns
    -------
    MapSet

    Raises
    ------
    FitError
        A negative ridge or rank, unknown pairs, too few rows, or several ridges for a Gram
        without parts.
    SiteError
        A layer that is not there.
    """
    several = isinstance(ridge, Iterable) and not isinstance(ridge, str)
    ridges = ridge_values(ridge) if several else (one_ridge(ridge),)  # type: ignore[arg-type]
    if rank is not None:
        check_rank(rank)
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    moments = as_gram(
        on,
        sites,
        layers_of(pairs) if layers is None else layers,
        progress,
        FOLDS if several else None,
        weights,
        pairs,
    )
    places = resolve_pairs(moments.columns, pairs)
    if several:
        chosen = choose_ridges(moments, ridges, places, intercept, progress)
    else:
        chosen = dict.fromkeys(places, ridges[0])
    problems = {alpha: Problem(moments, alpha, intercept) for alpha in ridges}
    of_place = {place: problems[chosen[place]] for place in places}
    if _too_many(moments, places) if lazy is None else lazy:
        maps: Mapping[tuple[int, int], LinearMap] = SolvedMaps(of_place, rank)
    else:
        maps = _solve_all(of_place, rank, progress)
    provenance = {
        **moments.provenance,
        "n": moments.n,
        "ridge": list(ridges) if several else ridges[0],
        "intercept": intercept,
    }
    if rank is not None:
        provenance["rank"] = rank
    return MapSet(maps, moments.columns, provenance)


def _too_many(moments: Gram, places: Sequence[tuple[int, int]]) -> bool:
    """Whether the matrices take more than a quarter of the machine's memory."""
    widths = [column.width for column in moments.columns]
    size = 8 * sum(widths[source] * widths[target] for source, target in places)
    memory = physical_memory()
    return memory is not None and size > memory / 4


def _solve_all(
    problems: Mapping[tuple[int, int], Problem], rank: int | None, progress: bool | None
) -> dict[tuple[int, int], LinearMap]:
    """Every pair in its order; sources on own threads, those with most targets first."""
    found: dict[tuple[int, int], LinearMap] = {}
    for problem in dict.fromkeys(problems.values()):
        targets = by_source(place for place in problems if problems[place] is problem)
        solved = _solve(problem, targets, progress)
        problem.warn(solved.items(), stacklevel=3)
        for source, those in solved.items():
            for target in targets[source]:
                found[source, target] = problem.linear_map(source, target, those, rank)
    return {place: found[place] for place in problems}


def _solve(
    problem: Problem, targets: Mapping[int, Sequence[int]], progress: bool | None
) -> dict[int, Solved]:
    shares = shared_out(targets, available_cores())
    solved: dict[int, Solved] = {}
    with (
        one_blas_thread(),
        ThreadPoolExecutor(available_cores()) as pool,
        tqdm(
            total=sum(map(len, targets.values())),
            desc="fit",
            unit="map",
            disable=None if progress is None else not progress,
            file=sys.stderr,
        ) as bar,
    ):
        jobs = [(source, pool.submit(problem.solve, source, those)) for source, those in shares]
        for source, job in jobs:
            found = job.result()
            bar.update(len(found.matrices))
            if source in solved:
                found = replace(found, matrices={**solved[source].matrices, **found.matrices})
            solved[source] = found
    return solved
