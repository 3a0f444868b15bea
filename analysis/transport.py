"""Activation transport operators: from a layer to a later one, at the same token or a later one.

"Activation Transport Operators" (Szablewski & Masiak 2025, arXiv 2508.17540): affine maps from
the state at (layer l, position t) to that at (layer l′, position t + k), and how near they come
to the most that any linear map could do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError, GramError
from actstore.fitting import LinearMap, MapSet, fit
from actstore.fitting.tables import r2_values
from actstore.grams import Gram, align, gram
from actstore.grams.threads import available_cores, one_blas_thread
from analysis import jackknife, results
from analysis.canonical import correlations, side, whitened
from analysis.comparing import add
from analysis.decoding import SITE

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95
SCORES = ("r2", "r2_white", "ceiling", "efficiency", "dimension")
Floats = NDArray[np.float64]


def operators(
    train: Run,
    held_out: Run,
    *,
    offsets: Sequence[int] = (0, 1),
    ridge: float | Sequence[float] = 0.0,
    rank: int | None = None,
    parts: int | None = 10,
    progress: bool | None = None,
) -> xr.Dataset:
    """How much of a later layer, at the same token or k tokens on, is carried there linearly.

    For layers l < l′ (l ≤ l′ where k > 0) an affine map is fitted on `train` and scored on
    `held_out`. With d the directions in which the target varies there and ρ the canonical
    correlations of source and target on these samples:

    * ``r2``: 1 − SSE/SST, mean over the target's coordinates;
    * ``r2_white``: the same over its d whitened directions;
    * ``ceiling``: Σρ²/d, the most that ``r2_white`` can be, for any affine map on these samples
      (the paper's R²_ceiling); it is too high by about (1 − ceiling) width/n, so give many times
      more samples than features;
    * ``efficiency``: ``r2_white`` / ``ceiling``;
    * ``dimension``: Σρ², the size of the subspace that is carried.

    Parameters
    ----------
    train, held_out : Run
        Samples of other documents; their layers of the residual stream in view are those mapped.
        For offsets above 0 all positions of a document are needed
        (``extract(..., positions="all")``).
    offsets : sequence of int
        k ≥ 0.
    ridge : float or sequence of float
        α; of several the best by cross-validation, see `actstore.fit`.
    rank : int, optional
        Highest rank of a map (reduced-rank regression).
    parts : int or None
        Intervals are a jackknife over so many groups of whole held-out documents; None: none.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        The scores (offset, source, target), NaN for pairs that are not mapped, with ``_low`` and
        ``_high``, ends of 95% intervals; ``samples`` and ``train_samples`` (offset).

    Raises
    ------
    AnalysisError
        A negative offset, a layer that does not vary, or no two layers to map.
    GramError, FitError
        No two samples of a document lie so far apart, or a fit is not possible.
    """
    chosen = list(dict.fromkeys(int(k) for k in offsets))
    if not chosen or min(chosen) < 0:
        raise AnalysisError(f"offsets={tuple(offsets)}: numbers of tokens ahead, 0 or more")
    layers = list(train.sites.get(SITE, []))
    if len(layers) < (2 if 0 in chosen else 1):
        raise AnalysisError(f"two layers of {SITE} are needed, but {layers} are in view")
    shape = (len(chosen), len(layers), len(layers))
    found = {name: np.full(shape, np.nan) for name in SCORES}
    groups = {name: np.full((parts or 0, *shape), np.nan) for name in SCORES}
    counts = np.zeros((2, len(chosen)), np.int64)
    sizes = np.zeros((parts or 0, len(chosen)), np.int64)
    bar = tqdm(
        total=len(chosen) * (1 + (parts or 0)),
        desc="transport",
        unit="Gram",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for number, offset in enumerate(chosen):
            maps = fit_operators(train, offset, ridge=ridge, rank=rank, progress=progress)
            rows, names = _rows(held_out, offset, (layers, layers))
            on = gram(rows, sites=names, pairs=list(maps), parts=parts, progress=progress)
            counts[:, number] = maps.provenance["n"], on.n
            for k, part in enumerate([on, *(on.without(p) for p in range(len(on.parts)))]):
                for pair, scores in _scored(maps, part).items():
                    place = tuple(layers.index(_layer(key)) for key in pair)
                    for name, value in zip(SCORES, scores, strict=True):
                        if k == 0:
                            found[name][number, *place] = value
                        else:
                            groups[name][k - 1, number, *place] = value
                bar.update()
            sizes[:, number] = [part.n for part in on.parts]
    dims = ("offset", "source", "target")
    dataset = xr.Dataset(coords={"offset": chosen, "source": layers, "target": layers})
    for name in SCORES:
        if parts is None:
            dataset[name] = (dims, found[name], {"units": "1"})
            continue
        ends = [
            jackknife.interval(found[name][k], groups[name][:, k], sizes[:, k], level=LEVEL)
            for k in range(len(chosen))
        ]
        stacked = type(ends[0])(*(np.stack(values) for values in zip(*ends, strict=True)))
        add(dataset, name, dims, stacked)
    dataset["train_samples"], dataset["samples"] = ("offset", counts[0]), ("offset", counts[1])
    dataset.attrs.update(level=LEVEL, parts=parts or 0)
    record = results.provenance(
        "analysis.transport.operators",
        runs={"train": train, "evaluation": held_out},
        offsets=chosen,
        ridge=ridge,
        rank=rank,
        parts=parts,
    )
    return results.label(dataset, "transport", f"{held_out.model} on {held_out.corpus}", record)


def fit_operators(
    run: Run,
    offset: int = 0,
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    ridge: float | Sequence[float] = 0.0,
    rank: int | None = None,
    cache: bool = True,
    progress: bool | None = None,
) -> MapSet:
    """The affine maps (l, t) → (l′, t + offset) themselves.

    Parameters
    ----------
    run : Run
    offset : int
        Tokens ahead.
    pairs : sequence of (l, l′), optional
        Default: every l < l′ of the layers in view, l ≤ l′ where the offset is above 0.
    ridge, rank
        As for `actstore.fit`.
    cache : bool
        Whether to keep the Gram in the run's store.

    Returns
    -------
    MapSet
        Keyed ``maps[l, l′]`` where the offset is 0, else ``maps[("t:resid", l), ("t+1:resid",
        l′)]``, with the offset in place of 1.
    """
    layers = list(run.sites.get(SITE, []))
    if pairs is None:
        pairs = [(a, b) for a in layers for b in layers if a < b or (offset and a == b)]
    used = tuple(sorted({pair[end] for pair in pairs}) for end in (0, 1))
    if offset == 0:
        used = (sorted({*used[0], *used[1]}),) * 2
    rows, names = _rows(run, offset, used)
    keys = pairs if offset == 0 else [((names[0], a), (names[-1], b)) for a, b in pairs]
    folds = 5 if not isinstance(ridge, int | float) else None
    moments = gram(rows, sites=names, pairs=keys, parts=folds, cache=cache, progress=progress)
    return fit(moments, pairs=keys, ridge=ridge, rank=rank, intercept=True, progress=progress)


def _rows(run: Run, offset: int, layers: Sequence[Sequence[int]]) -> tuple[Any, list[str]]:
    """The run's layers beside those of the tokens further on, and what the sites are called."""
    here, there = (run.sel(site=SITE, layer=list(chosen)) for chosen in layers)
    if offset == 0:
        return here, [SITE]
    try:
        pair = align(here, there, shift=offset)
    except GramError as error:
        raise GramError(
            f"{error}; pairs of positions need a run of all of them: extract(..., positions='all')"
        ) from None
    return pair, [f"{name}:{SITE}" for name in pair.names]


def _scored(maps: MapSet, on: Gram) -> dict[Any, tuple[float, ...]]:
    keys = list(maps)
    eps = float(np.finfo("float64" if on.provenance["precision"] == "float64" else "float32").eps)
    used = {key for pair in keys for key in pair}

    def directions(key: Any) -> Any:
        moments = on.cross(key, key, centred=True)
        if not np.trace(moments) > 0:
            raise AnalysisError(f"layer {_layer(key)} is the same in all {on.n:,} samples")
        return side(moments, eps)

    def score(pair: Any) -> tuple[float, ...]:
        source, target = pair
        cross = on.cross(source, target, centred=True)
        error = squared_error(on, maps[pair])
        total = on.cross(target, target, centred=True)
        r2 = float(r2_values(np.diagonal(error), np.diagonal(total), "uniform"))
        basis = sides[target]
        white = np.einsum("ij,ij->j", basis.vectors, error @ basis.vectors) / basis.values
        r2_white = 1 - float(white.mean())
        size = float((correlations(whitened(sides[source], basis, cross)) ** 2).sum())
        ceiling = size / basis.rank
        return r2, r2_white, ceiling, r2_white / ceiling, size

    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        sides = dict(zip(used, pool.map(directions, used), strict=True))
        return dict(zip(keys, pool.map(score, keys), strict=True))


def squared_error(on: Gram, fitted: LinearMap) -> Floats:
    """Σ e eᵀ of e = y − x A − b over the rows of a Gram, (width, width) float64."""
    source, target, matrix = fitted.source, fitted.target, fitted.matrix
    explained = on.cross(source, target, centred=True).T @ matrix
    error = on.cross(target, target, centred=True) - explained - explained.T
    error += matrix.T @ on.cross(source, source, centred=True) @ matrix
    mean = on.mean(target) - on.mean(source) @ matrix
    if fitted.bias is not None:
        mean = mean - fitted.bias
    return np.asarray(error + on.n * np.outer(mean, mean))


def _layer(key: Any) -> int:
    return int(key[1] if isinstance(key, tuple) else key)
