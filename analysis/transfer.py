"""Maps fitted on one corpus, used on another.

"Jump to Conclusions" (arXiv 2303.09435) §7: fit on corpus A, evaluate on corpus B, all
combinations of any number of corpora. On one evaluation corpus all maps see the same samples, so
that what another corpus's maps cost is a paired difference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError
from analysis import results, stats
from analysis.comparing import add, checked_ks, compare, groups_of, layer_shares
from analysis.decoding import MEMORY, SITE, readouts_to_last

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel
    from actstore.store import Run

LEVEL = 0.95
Floats = NDArray[np.float64]


def predictions(
    maps: Mapping[str, MapSet],
    runs: Mapping[str, Run],
    model: LanguageModel,
    *,
    ks: Sequence[int] = (1, 5, 10),
    cluster: str | None = "document",
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Precision@k and surprisal of the maps of every corpus on every corpus.

    Parameters
    ----------
    maps : mapping of corpus to MapSet
        Maps to the last layer by the corpus they were fitted on.
    runs : mapping of corpus to Run
        Evaluation samples; for corpora that are among the maps, other samples than theirs.
    model, ks, cluster, memory, progress
        As for `analysis.prediction.curves`.

    Returns
    -------
    xarray.Dataset
        ``precision`` (fitted_on, evaluated_on, layer, k) and ``surprisal``; ``mean_precision``
        (fitted_on, evaluated_on, k) and ``mean_surprisal``, averaged over the layers below the
        last for each sample; and what swapping costs, ``cost`` (fitted_on, evaluated_on, k): the
        mean precision with the evaluation corpus's own maps less that with these, paired, NaN
        where it has none. All with cluster-robust 95% intervals ``_low`` and ``_high``. The
        baseline without maps is ``fitted_on`` = "id".

    Raises
    ------
    AnalysisError, SiteError, NonFiniteError
        As for `analysis.prediction.curves`; layers that differ between the runs.
    """
    _check_names(maps, runs)
    chosen_ks = checked_ks(ks, model.vocab_size)
    names = [*maps, "id"]
    layers = _shared_layers(runs)
    last = model.n_blocks
    dataset = xr.Dataset(
        coords={
            "fitted_on": names,
            "evaluated_on": list(runs),
            "layer": layers,
            "k": chosen_ks,
            "depth": ("layer", np.array(layers) / last),
        }
    )
    parts: dict[str, list[stats.Interval]] = {}
    for corpus, run in runs.items():
        groups = groups_of(run, cluster)
        readouts: dict[int, dict[str, Any]] = {}
        for name in names:
            fitted = None if name == "id" else maps[name]
            kind = "id" if fitted is None else "mat"
            for layer, readout in readouts_to_last(run, fitted, model, (kind,)).items():
                readouts.setdefault(layer, {})[name] = readout[kind]
        found = compare(run, model, readouts, names, memory=memory, progress=progress)
        hits = np.stack([found.rank < k for k in chosen_ks], axis=2)
        below = np.array([layer < last for layer in readouts])
        over_layers = hits[:, below].mean(axis=1)
        parts.setdefault("precision", []).append(layer_shares(hits, groups, layers, last, LEVEL))
        parts.setdefault("surprisal", []).append(stats.mean(found.surprisal, groups, level=LEVEL))
        interval = stats.mean(over_layers, groups, level=LEVEL)
        parts.setdefault("mean_precision", []).append(interval)
        interval = stats.mean(found.surprisal[:, below].mean(axis=1), groups, level=LEVEL)
        parts.setdefault("mean_surprisal", []).append(interval)
        if corpus in maps:
            own = over_layers[names.index(corpus)]
            interval = stats.mean(own - over_layers, groups, level=LEVEL)
        else:
            interval = stats.Interval(*(np.full(over_layers.shape[:2], np.nan) for _ in range(3)))
        parts.setdefault("cost", []).append(interval)
    dims = {
        "precision": ("fitted_on", "evaluated_on", "layer", "k"),
        "surprisal": ("fitted_on", "evaluated_on", "layer"),
        "mean_precision": ("fitted_on", "evaluated_on", "k"),
        "mean_surprisal": ("fitted_on", "evaluated_on"),
        "cost": ("fitted_on", "evaluated_on", "k"),
    }
    for name, intervals in parts.items():
        units = "nats" if "surprisal" in name else "1"
        add(dataset, name, dims[name], _stacked(intervals), units)
    return _labelled(dataset, "transfer", "predictions", maps, runs, model, cluster, ks=chosen_ks)


def r2(
    maps: Mapping[str, MapSet],
    runs: Mapping[str, Run],
    *,
    pairs: Iterable[tuple[int, int]] | None = None,
    cluster: str | None = "document",
    resamples: int = 500,
    seed: int = 0,
    progress: bool | None = None,
) -> xr.Dataset:
    """r² of the maps of every corpus on every corpus, with intervals.

    As `analysis.r2.heat_maps`, r²_c = 1 − SSE_c/SST_c averaged uniformly over coordinates, but
    from the states themselves, so that whole clusters can be resampled: the intervals are
    percentile bootstrap ones, and differences are of the same resamples.

    Parameters
    ----------
    maps, runs, cluster
        As for `predictions`.
    pairs : iterable of (source, target), optional
        Default: every layer in view to the last of them.
    resamples, seed : int
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``r2`` (fitted_on, evaluated_on, pair), ``mean_r2`` (fitted_on, evaluated_on) over the
        pairs, and ``r2_cost`` (fitted_on, evaluated_on), the mean with the evaluation corpus's
        own maps less that with these; with ``_low`` and ``_high``. ``fitted_on`` = "id" takes the
        source state itself. Coordinates ``source`` and ``target`` on ``pair``.
    """
    _check_names(maps, runs)
    layers = _shared_layers(runs)
    chosen = [(layer, layers[-1]) for layer in layers[:-1]] if pairs is None else list(pairs)
    if not chosen:
        raise AnalysisError("no pairs of layers to compute r² of")
    names = [*maps, "id"]
    for name, fitted in maps.items():
        missing = [pair for pair in chosen if pair not in fitted]
        if missing:
            raise AnalysisError(f"no map {missing[0][0]} → {missing[0][1]} among those of {name!r}")
    parts: dict[str, list[stats.Interval]] = {"r2": [], "mean_r2": [], "r2_cost": []}
    bar = tqdm(
        total=len(runs) * len(chosen),
        desc="transfer",
        unit="pair",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    for corpus, run in runs.items():
        groups = groups_of(run, cluster)
        codes, counts = stats.resampled_counts(groups, run.n_samples, resamples, seed)
        counts = np.concatenate([np.ones((1, counts.shape[1])), counts])
        values = np.empty((len(counts), len(names), len(chosen)))
        states = _Layers(run)
        for p, (source, target) in enumerate(chosen):
            x, y = states[source], states[target]
            for m, name in enumerate(names):
                predicted = x if name == "id" else maps[name][source, target](x)
                values[:, m, p] = _resampled_r2(predicted, y, codes, counts)
            bar.update()
        parts["r2"].append(stats.percentiles(values[0], values[1:], level=LEVEL))
        means = values.mean(axis=2)
        parts["mean_r2"].append(stats.percentiles(means[0], means[1:], level=LEVEL))
        own = means[:, [names.index(corpus)]] if corpus in maps else np.nan * means[:, :1]
        cost = own - means
        parts["r2_cost"].append(stats.percentiles(cost[0], cost[1:], level=LEVEL))
    bar.close()
    dataset = xr.Dataset(
        coords={
            "fitted_on": names,
            "evaluated_on": list(runs),
            "source": ("pair", [source for source, _ in chosen]),
            "target": ("pair", [target for _, target in chosen]),
        }
    )
    dims = ("fitted_on", "evaluated_on", "pair")
    for name, intervals in parts.items():
        add(dataset, name, dims if name == "r2" else dims[:2], _stacked(intervals))
    dataset.attrs["resamples"] = resamples
    return _labelled(
        dataset,
        "transfer_r2",
        "r2",
        maps,
        runs,
        None,
        cluster,
        pairs=chosen,
        resamples=resamples,
        seed=seed,
    )


class _Layers:
    """A run's layers as float64, the last one used kept."""

    def __init__(self, run: Run) -> None:
        self._run, self._kept = run, dict[int, Floats]()
        self._last = run.sites[SITE][-1]

    def __getitem__(self, layer: int) -> Floats:
        if layer not in self._kept:
            self._kept = {k: v for k, v in self._kept.items() if k == self._last}
            blocks = self._run.row_blocks(self._run.n_samples)
            rows = [self._run.read(SITE, layer, block) for block in blocks]
            self._kept[layer] = np.concatenate(rows).astype(np.float64)
        return self._kept[layer]


def _resampled_r2(predicted: Floats, y: Floats, codes: NDArray[np.intp], counts: Floats) -> Floats:
    """Uniformly averaged r² of each resample of clusters, (resamples,)."""
    centred = y - y.mean(axis=0)
    groups = counts.shape[1]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(groups))

    def by_group(values: Floats) -> Floats:
        sums: Floats = np.add.reduceat(values[order], starts, axis=0)
        return sums

    n = counts @ np.bincount(codes).astype(np.float64)
    sse = counts @ by_group((predicted - y) ** 2)
    total = counts @ by_group(centred)
    sst = counts @ by_group(centred**2) - total**2 / n[:, None]
    ratio = np.divide(sse, sst, out=np.where(sse > 0, 1.0, 0.0), where=sst > 0)
    averaged: Floats = (1 - ratio).mean(axis=1)
    return averaged


def _shared_layers(runs: Mapping[str, Run]) -> list[int]:
    found = {name: sorted(run.sites.get(SITE, [])) for name, run in runs.items()}
    first, *others = found.values()
    if not first or any(other != first for other in others):
        raise AnalysisError(f"the runs need the same layers of {SITE!r}, but they have {found}")
    return first


def _check_names(maps: Mapping[str, Any], runs: Mapping[str, Any]) -> None:
    if not maps or not runs or "id" in maps:
        raise AnalysisError(
            "give maps and runs by the name of their corpus; 'id' is the baseline's name"
        )


def _stacked(intervals: Sequence[stats.Interval]) -> stats.Interval:
    """One interval a corpus → evaluated_on as the second axis."""
    return stats.Interval(*(np.stack(part, axis=1) for part in zip(*intervals, strict=True)))


def _labelled(
    dataset: xr.Dataset,
    kind: str,
    function: str,
    maps: Mapping[str, MapSet],
    runs: Mapping[str, Run],
    model: LanguageModel | None,
    cluster: str | None,
    **parameters: Any,
) -> xr.Dataset:
    groups = {name: groups_of(run, cluster) for name, run in runs.items()}
    dataset.attrs.update(
        samples=[run.n_samples for run in runs.values()],
        clusters=[
            runs[name].n_samples if labels is None else len(np.unique(labels))
            for name, labels in groups.items()
        ],
        cluster=cluster or "sample",
        level=LEVEL,
        fitted=[int(fitted.provenance.get("n", 0)) for fitted in maps.values()],
    )
    record = results.provenance(
        f"analysis.transfer.{function}",
        runs=runs,
        model=model,
        fitted={name: fitted.provenance for name, fitted in maps.items()},
        cluster=cluster,
        **parameters,
    )
    owner = next(iter(runs.values())).model
    return results.label(dataset, kind, f"{owner}: {', '.join(runs)}", record)
