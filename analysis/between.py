"""Affine maps between two models on the same tokens: which layer of one is which of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import xarray as xr

from actstore.errors import AnalysisError
from actstore.fitting import MapSet, fit
from actstore.grams import align, gram
from analysis import results
from analysis.decoding import SITE

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95


def fit_between(
    first: Run,
    second: Run,
    *,
    by: Sequence[str] = ("document", "position"),
    ridge: float | Sequence[float] = 0.0,
    rank: int | None = None,
    progress: bool | None = None,
) -> MapSet:
    """Affine maps from every layer of one model to every layer of another.

    Rows are paired by `by`: both runs are of one corpus, with the same tokens at the same
    positions. Models with other tokenisers are paired by coordinates that both have, such as
    ``("document",)`` where each has one sample a document.

    Parameters
    ----------
    first, second : Run
        Their layers of the residual stream in view; of the same model under two labels or
        settings too.
    by : sequence of str
        Sample coordinates that tell samples apart.
    ridge : float or sequence of float
        α; of several the best by cross-validation over documents, see `actstore.fit`.
    rank : int, optional
        Highest rank of a map.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    MapSet
        Keyed ``maps[("gpt2:resid", 3), ("pythia:resid", 5)]``, the models' labels in front.

    Raises
    ------
    GramError, FitError
        No samples in common, labels that are the same, or a fit that is not possible.

    Examples
    --------
    >>> maps = between.fit_between(store["gpt2/wiki"], store["gpt2-medium/wiki"])  # doctest: +SKIP
    >>> states = maps[("gpt2:resid", 6), ("gpt2-medium:resid", 12)](h)  # doctest: +SKIP
    """
    pair = align(first.sel(site=SITE), second.sel(site=SITE), by=by)
    left, right = (f"{name}:{SITE}" for name in pair.names)
    pairs = [((left, a), (right, b)) for a in first.sites[SITE] for b in second.sites[SITE]]
    folds = 5 if not isinstance(ridge, int | float) else None
    moments = gram(pair, sites=[left, right], pairs=pairs, parts=folds, progress=progress)
    return fit(moments, pairs=pairs, ridge=ridge, rank=rank, intercept=True, progress=progress)


def scores(
    first: Run,
    second: Run,
    *,
    fraction: float = 0.25,
    split_by: str = "document",
    seed: int = 0,
    by: Sequence[str] = ("document", "position"),
    ridge: float | Sequence[float] = 0.0,
    rank: int | None = None,
    parts: int = 10,
    progress: bool | None = None,
) -> xr.Dataset:
    """Held-out r² of the maps between two models, both ways.

    Parameters
    ----------
    first, second : Run
    fraction : float
        Share of the samples held out, in (0, 1).
    split_by : str
        Sample coordinate of `first` whose equal values are held out together.
    seed : int
        Of what is held out.
    by, ridge, rank
        As for `fit_between`.
    parts : int
        Intervals are a jackknife over so many groups of whole held-out documents.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``forth`` (a, b): r² from layer a of `first` to layer b of `second`, mean over
        coordinates; ``back`` (a, b): from layer b of `second` to layer a of `first`; each with
        ``_low`` and ``_high``, ends of 95% intervals.

    Raises
    ------
    AnalysisError, GramError, FitError
        No residual stream in view, no samples in common, or a fit that is not possible.
    """
    for run in (first, second):
        if SITE not in run.sites:
            raise AnalysisError(f"{run.model}/{run.corpus} has no {SITE!r} in view")
    train, held_out = first.split(fraction, by=split_by, seed=seed)
    dataset = xr.Dataset(coords={"a": first.sites[SITE], "b": second.sites[SITE]})
    samples: int = 0
    for name in ("forth", "back"):
        forth = name == "forth"
        source, target = (train, second) if forth else (second, train)
        maps = fit_between(source, target, by=by, ridge=ridge, rank=rank, progress=progress)
        sides = (held_out, second) if forth else (second, held_out)
        on = align(sides[0].sel(site=SITE), sides[1].sel(site=SITE), by=by)
        sites = [f"{label}:{SITE}" for label in on.names]
        moments = gram(on, sites=sites, pairs=list(maps), parts=parts, progress=progress)
        found = maps.r2_interval(moments, level=LEVEL, progress=progress)
        dims = ("a", "b") if forth else ("b", "a")
        for suffix, end in (("", "r2"), ("_low", "low"), ("_high", "high")):
            values = found[end].values
            dataset[name + suffix] = (dims, values, {"units": "1"})
        samples = int(moments.n)
    dataset = dataset.transpose("a", "b")
    dataset.attrs.update(
        level=LEVEL,
        parts=parts,
        samples=samples,
        models=[first.model, second.model],
    )
    record = results.provenance(
        "analysis.between.scores",
        runs={"first": first, "second": second},
        fraction=fraction,
        split_by=split_by,
        seed=seed,
        by=list(by),
        ridge=ridge,
        rank=rank,
        parts=parts,
    )
    title = f"{first.model} and {second.model} on {first.corpus}"
    return results.label(dataset, "between", title, record)
