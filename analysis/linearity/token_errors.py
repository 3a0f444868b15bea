"""Where the step from layer to layer is not linear: errors of single tokens, by layer and class.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §3 scores a whole layer; here is the
distribution of ‖x̃A − ỹ‖ over tokens behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError, NonFiniteError
from actstore.fitting import LinearMap, MapSet, fit
from actstore.wording import count
from analysis import jackknife, results, stats
from analysis.comparing import add
from analysis.linearity.tally import Tally, coarse, coarse_edges, quantile
from analysis.tokens import classes as token_classes
from analysis.tokens import drop_first
from analysis.windows import MEMORY, row_parts, windows

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95
ROWS = 2048
NORMALISATIONS = ("layer", "token")
Floats = NDArray[np.float64]


def errors(
    run: Run,
    *,
    maps: MapSet | None = None,
    pairs: str | Iterable[tuple[int, int]] = "adjacent",
    normalise: str = "layer",
    quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99),
    classes: Mapping[str, NDArray[np.bool_]] | None = None,
    first_token: str | int = "keep",
    cluster: str | None = "document",
    parts: int = 20,
    resamples: int = 200,
    seed: int = 0,
    site: str = "resid",
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Distribution of the L2 error of single tokens, by step and by class of token.

    Errors go to logarithmic bins 1.2% wide, for each class and each group of documents, so that
    memory does not depend on the number of samples; quantiles are read off the bins, by
    interpolation within one.

    Parameters
    ----------
    run : Run
    maps : MapSet, optional
        Judge these, fitted on other documents; default: the best affine maps of this very run, in
        blocks of layers, as the in-sample score has them.
    pairs : as for `analysis.linearity.scores`
    normalise : {"layer", "token"}
        The paper leaves it open. "layer": ‖xA + b − y‖ over the layer's root mean square of
        ‖y − ȳ‖, so that the mean square of all errors is 1 − score, whatever the number of
        samples. "token": over the token's own ‖y − ȳ‖; a token at ȳ itself has no such error and
        is counted as above all bins.
    quantiles : sequence of float
        Each in [0, 1].
    classes : mapping of name to (n_samples,) bool, optional
        Default: `analysis.tokens.classes`. Of the samples that `first_token` leaves.
    first_token, cluster, parts, seed, site, memory, progress
        As for `analysis.linearity.scores`.
    resamples : int
        Bootstrap resamples of the groups, for the intervals of quantiles.

    Returns
    -------
    xarray.Dataset
        Over ``class``, and ``step`` with coordinates ``source`` and ``target``: ``error``
        (class, step, quantile), with percentile bootstrap intervals over groups of clusters;
        ``mean_square`` (class, step), with jackknife intervals; ``share_of_error`` (class, step),
        of the sum of squares of all samples; ``count`` (class); and ``histogram`` (class, step,
        bin), counts of samples between ``error_from`` and ``error_to``. NaN where the target
        does not vary.

    Raises
    ------
    AnalysisError
        An unknown normalisation, quantiles, classes or maps that do not fit.
    FitError, SiteError, GramError, NonFiniteError
        As for `analysis.linearity.scores`.
    """
    if normalise not in NORMALISATIONS:
        raise AnalysisError(f"normalise={normalise!r} is not known: choose 'layer' or 'token'")
    levels = [float(q) for q in quantiles]
    if not levels or not all(0 <= q <= 1 for q in levels):
        raise AnalysisError(f"quantiles={tuple(quantiles)}; each lies between 0 and 1")
    kept = drop_first(run, first_token)
    masks = _checked_classes(token_classes(kept) if classes is None else classes, kept)
    flags = np.stack(list(masks.values()))
    division = row_parts(kept, cluster, parts, seed)
    groups = np.zeros(kept.n_samples, np.intp) if division is None else division
    found: dict[tuple[int, int], Tally] = {}
    bar = tqdm(
        desc="errors",
        unit="step",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for window in windows(kept, pairs, site, None, memory, False):
            fitted = maps
            if fitted is None:
                fitted = fit(window.moments, pairs=window.pairs, intercept=True, progress=False)
            for pair in window.pairs:
                energy = float(window.moments.variance(pair[1]).sum()) / window.moments.n
                mean = window.moments.mean(pair[1])
                scale = None if normalise == "token" else np.sqrt(energy)
                tally = Tally(len(flags), int(groups.max()) + 1)
                _walk(kept, site, _map(fitted, pair), mean, scale, flags, groups, tally)
                found[pair] = tally
                bar.update()
    sizes = np.bincount(groups)
    dataset = _dataset(found, masks, levels, sizes, resamples, seed)
    dataset.attrs = {
        "samples": kept.n_samples,
        "dropped": run.n_samples - kept.n_samples,
        "normalise": normalise,
        "parts": len(sizes) if division is not None else 0,
        "cluster": cluster or "sample",
        "level": LEVEL,
        "in_sample": int(maps is None),
    }
    record = results.provenance(
        "analysis.linearity.errors",
        runs={"samples": kept},
        maps=maps,
        pairs=pairs if isinstance(pairs, str) else [list(pair) for pair in found],
        normalise=normalise,
        first_token=first_token,
        cluster=cluster,
        parts=parts,
        resamples=resamples,
        seed=seed,
        site=site,
    )
    return results.label(dataset, "linearity_errors", f"{run.model} on {run.corpus}", record)


def _walk(
    run: Run,
    site: str,
    linear: LinearMap,
    mean: Floats,
    scale: float | None,
    masks: NDArray[np.bool_],
    groups: NDArray[np.intp],
    tally: Tally,
) -> None:
    """Stream one step's errors into its tally."""
    if scale == 0:
        tally.defined = False
        return
    matrix = linear.matrix.astype(np.float64)
    bias = 0.0 if linear.bias is None else linear.bias
    for block in run.row_blocks(ROWS):
        x = run.read(site, linear.source, block).astype(np.float64)  # type: ignore[arg-type]
        y = run.read(site, linear.target, block).astype(np.float64)  # type: ignore[arg-type]
        size = np.linalg.norm(x @ matrix + bias - y, axis=1)
        if not np.isfinite(size).all():
            raise NonFiniteError(
                f"{run.model}/{run.corpus}: layers {linear.source} or {linear.target} have NaN or "
                "infinity; leave those samples out with run.isel(sample=...)"
            )
        if scale is None:
            own = np.linalg.norm(y - mean, axis=1)
            values = np.divide(size, own, out=np.full_like(size, np.inf), where=own > 0)
        else:
            values = size / scale
        tally.add(values, masks[:, block.out], groups[block.out])


def _map(maps: MapSet, pair: tuple[int, int]) -> LinearMap:
    if pair not in maps:
        raise AnalysisError(f"no map {pair[0]} → {pair[1]} among those given")
    return maps[pair]


def _checked_classes(
    classes: Mapping[str, NDArray[np.bool_]], run: Run
) -> dict[str, NDArray[np.bool_]]:
    found = {name: np.asarray(mask) for name, mask in classes.items()}
    for name, mask in found.items():
        if mask.shape != (run.n_samples,) or mask.dtype != np.bool_:
            raise AnalysisError(
                f"class {name!r} is {mask.dtype} {mask.shape}, expected one bool for each of the "
                f"{count(run.n_samples, 'sample')}"
            )
    return {"all": np.ones(run.n_samples, bool), **found}


def _dataset(
    found: Mapping[tuple[int, int], Tally],
    masks: Mapping[str, NDArray[np.bool_]],
    levels: list[float],
    sizes: NDArray[np.intp],
    resamples: int,
    seed: int,
) -> xr.Dataset:
    pairs = sorted(found)
    edges = coarse_edges()
    dataset = xr.Dataset(
        coords={
            "class": list(masks),
            "step": [f"{x} → {y}" for x, y in pairs],
            "source": ("step", [x for x, _ in pairs]),
            "target": ("step", [y for _, y in pairs]),
            "quantile": levels,
            "error_from": ("bin", edges[:-1]),
            "error_to": ("bin", edges[1:]),
        }
    )
    each = [_of_step(found[pair], levels, sizes, resamples, seed) for pair in pairs]
    names = ("error", "mean_square")
    dims = {"error": ("class", "step", "quantile"), "mean_square": ("class", "step")}
    for name in names:
        ends = [np.stack([part[name][end] for part in each], axis=1) for end in range(3)]
        add(dataset, name, dims[name], stats.Interval(*ends))
    squares = np.stack([found[pair].squares.sum(axis=1) for pair in pairs], axis=1)
    whole = squares[list(masks).index("all")]
    dataset["share_of_error"] = (
        ("class", "step"),
        np.divide(squares, whole, out=np.full_like(squares, np.nan), where=whole > 0),
    )
    dataset["count"] = ("class", [int(mask.sum()) for mask in masks.values()])
    counts = np.stack([coarse(found[pair].counts.sum(axis=1)) for pair in pairs], axis=1)
    dataset["histogram"] = (("class", "step", "bin"), counts)
    return dataset


def _of_step(
    tally: Tally, levels: list[float], sizes: NDArray[np.intp], resamples: int, seed: int
) -> dict[str, stats.Interval]:
    """Quantiles and mean squares of all classes, with intervals over groups."""
    members = tally.counts.sum(axis=2)
    totals = members.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = tally.squares.sum(axis=1) / totals
        rest = (tally.squares.sum(axis=1)[:, None] - tally.squares) / (totals[:, None] - members)
    if not tally.defined:
        mean[:], rest[:] = np.nan, np.nan
    several = len(sizes) > 1
    mean_square = jackknife.interval(
        mean, rest.T if several else np.empty((0, len(mean))), sizes if several else [], level=LEVEL
    )
    value = quantile(tally.counts.sum(axis=1), levels)
    if several and tally.defined:
        groups = len(sizes)
        draws = np.random.default_rng(seed).multinomial(
            groups, np.full(groups, 1 / groups), resamples
        )
        resampled = np.stack([quantile(draws @ counts, levels) for counts in tally.counts], axis=1)
        with np.errstate(invalid="ignore"):
            ends = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    else:
        ends = np.full((2, *value.shape), np.nan)
    low = np.maximum(mean_square.low, 0.0)
    return {
        "error": stats.Interval(value, ends[0], ends[1]),
        "mean_square": stats.Interval(mean_square.value, low, mean_square.high),
    }
