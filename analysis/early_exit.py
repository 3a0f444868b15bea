"""Early exit: how many blocks a prediction needs, at a fixed layer or token by token.

"Jump to Conclusions" (arXiv 2303.09435) §4, after CALM (Schuster et al. 2022, arXiv 2207.07061):
walk up the layers, decode each through its map to the last layer (``mat``) or as it is (``id``),
and stop at the first that is confident enough. `sweep` measures this on stored states, where the
history of every sample is exact; `generate` (in `analysis.generating`) does it for real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from actstore.wording import count
from analysis import results, stats
from analysis.comparing import add, compare, describe_samples, groups_of, layer_shares
from analysis.decoding import MEMORY, SHORTCUTS, readouts_to_last
from analysis.generating import generate
from analysis.generation_cost import measure

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel
    from actstore.store import Run

__all__ = ["LAMBDAS", "crossing", "generate", "measure", "saved_table", "sweep", "threshold"]

LEVEL = 0.95
_COMMON = (-1.112, *(round(0.1 * step, 1) for step in range(11)), 1.112)
LAMBDAS: dict[str, tuple[float, ...]] = {
    "mat": _COMMON,
    "id": tuple(sorted({*_COMMON, *(round(1 + 0.0112 * step, 4) for step in range(1, 10))})),
}
"""The λ that the paper sweeps; nine more between 1 and 1.112 for ``id``."""

Floats = NDArray[np.float64]


def threshold(lambda_: Any, position: Any, mean_length: float) -> Any:
    """Confidence above which a token exits, 0.9 λ + 0.1 exp(−4 t / N).

    "Jump to Conclusions" §4, after CALM's decaying threshold.

    Parameters
    ----------
    lambda_ : float or array
    position : int or array
        t, the token's place in its sequence, counted from 0.
    mean_length : float
        N, the mean of t + 1 over the evaluation samples.
    """
    return 0.9 * lambda_ + 0.1 * np.exp(-4 * np.asarray(position, np.float64) / mean_length)


def sweep(
    run: Run,
    maps: MapSet | None,
    model: LanguageModel,
    *,
    shortcuts: Sequence[str] = SHORTCUTS,
    lambdas: Mapping[str, Sequence[float]] | Sequence[float] | None = None,
    levels: Sequence[float] = (0.9, 0.95, 0.98),
    first: int = 1,
    cluster: str | None = "document",
    resamples: int = 1000,
    seed: int = 0,
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Accuracy against blocks run, for exits at a fixed layer and for confident exits.

    Dynamic exit: a sample leaves at the first layer l ≥ `first` whose confidence c = p₁ − p₂ is
    above `threshold`, at the latest at the last layer; its cost is l blocks. Precision@1 is the
    share of samples whose token there is the model's own. Every stored state was computed with
    its whole history run through all blocks; what early exits of earlier tokens would do to it
    is not part of this measurement.

    Layers saved at level a are L − b, b the number of blocks at which the curve of Precision@1
    over (mean) blocks, its points joined by straight lines, reaches a to stay above it.

    Parameters
    ----------
    run, maps, model, shortcuts, cluster, memory, progress
        As for `analysis.prediction.curves`. Exits are possible at the layers in view.
    lambdas : sequence of float, or mapping of shortcut to such, optional
        Default: the paper's, `LAMBDAS`.
    levels : sequence of float
        The a at which layers saved are reported, 0 < a ≤ 1.
    first : int
        The first layer that may be left at; the paper begins with 1.
    resamples, seed : int
        Bootstrap resamples of whole clusters for the layers saved; N stays fixed.

    Returns
    -------
    xarray.Dataset
        ``blocks`` and ``precision`` (shortcut, lambda), ``exits`` (shortcut, lambda, layer; share
        of samples that leave there), ``fixed_precision`` (shortcut, layer), ``saved`` and
        ``saved_share`` (policy, shortcut, level; policy "fixed" or "dynamic"), and with both
        shortcuts ``saved_gain`` (policy, level) = mat − id, paired. Each with ``_low`` and
        ``_high`` but ``exits``: cluster-robust 95% intervals, percentile bootstrap for what is
        saved. NaN where a shortcut was not swept over a λ.

    Raises
    ------
    AnalysisError, SiteError, NonFiniteError
        As for `analysis.prediction.curves`; a level outside (0, 1].
    """
    swept = _swept(shortcuts, lambdas)
    chosen_levels = _checked_levels(levels)
    groups = groups_of(run, cluster)
    readouts = readouts_to_last(run, maps, model, shortcuts)
    layers, last = np.array(list(readouts)), model.n_blocks
    found = compare(
        run, model, readouts, shortcuts, confidence=True, memory=memory, progress=progress
    )
    assert found.confidence is not None
    hits = found.rank == 0
    position = run.samples.position.values
    length = float((position + 1).mean())
    grid = np.array(sorted({value for values in swept.values() for value in values}))
    limits = threshold(grid[:, None], position, length)
    place = exit_places(found.confidence, limits, np.flatnonzero(layers >= first))
    left_hits = np.take_along_axis(hits, place, axis=1)
    blocks = layers[place]

    dataset = xr.Dataset(
        coords={
            "shortcut": list(shortcuts),
            "lambda": grid,
            "layer": layers,
            "policy": ["fixed", "dynamic"],
            "level": chosen_levels,
            "depth": ("layer", layers / last),
        }
    )
    missing = np.array([[value not in swept[name] for value in grid] for name in shortcuts])
    for name, interval in (
        ("blocks", stats.mean(blocks, groups, level=LEVEL)),
        ("precision", stats.proportion(left_hits, groups, level=LEVEL)),
    ):
        kept = stats.Interval(*(np.where(missing, np.nan, part) for part in interval))
        add(dataset, name, ("shortcut", "lambda"), kept, "blocks" if name == "blocks" else "1")
    share = (place[..., None] == np.arange(len(layers))).mean(axis=2)
    dataset["exits"] = (
        ("shortcut", "lambda", "layer"),
        np.where(missing[..., None], np.nan, share),
    )
    fixed = layer_shares(hits, groups, layers.tolist(), last, LEVEL)
    add(dataset, "fixed_precision", ("shortcut", "layer"), fixed)

    codes, counts = stats.resampled_counts(groups, run.n_samples, resamples, seed)
    counts = np.concatenate([np.ones((1, counts.shape[1])), counts])
    sizes = counts @ np.bincount(codes).astype(np.float64)
    saved = np.empty((len(counts), 2, len(shortcuts), len(chosen_levels)))
    for s, name in enumerate(shortcuts):
        used = [k for k, value in enumerate(grid) if value in swept[name]]
        allowed = layers >= first
        curves = (
            (np.broadcast_to(layers[allowed], (len(counts), int(allowed.sum()))), hits[s, allowed]),
            (_resampled(blocks[s, used], codes, counts, sizes), left_hits[s, used]),
        )
        for policy, (cost, right) in enumerate(curves):
            accuracy = _resampled(right, codes, counts, sizes)
            saved[:, policy, s] = last - crossing(cost, accuracy, chosen_levels)
    dims = ("policy", "shortcut", "level")
    estimate = stats.percentiles(saved[0], saved[1:], level=LEVEL)
    add(dataset, "saved", dims, estimate, "blocks")
    add(dataset, "saved_share", dims, stats.Interval(*(part / last for part in estimate)))
    if {"mat", "id"} <= set(shortcuts):
        mat, identity = list(shortcuts).index("mat"), list(shortcuts).index("id")
        gain = saved[:, :, mat] - saved[:, :, identity]
        interval = stats.percentiles(gain[0], gain[1:], level=LEVEL)
        add(dataset, "saved_gain", ("policy", "level"), interval, "blocks")
    dataset.attrs.update(describe_samples(run, groups, cluster, LEVEL))
    dataset.attrs.update(n_blocks=last, mean_length=length, resamples=resamples)
    record = results.provenance(
        "analysis.early_exit.sweep",
        runs={"evaluation": run},
        model=model,
        maps=maps if "mat" in shortcuts else None,
        shortcuts=list(shortcuts),
        lambdas={name: list(values) for name, values in swept.items()},
        levels=chosen_levels,
        first=first,
        cluster=cluster,
        resamples=resamples,
        seed=seed,
    )
    return results.label(dataset, "early_exit", f"{run.model} on {run.corpus}", record)


def exit_places(
    confidence: NDArray[np.float32], limits: Floats, allowed: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Where each sample leaves: the first allowed place whose confidence is above its limit.

    Parameters
    ----------
    confidence : (shortcut, layer, sample)
    limits : (lambda, sample)
    allowed : increasing places on the layer axis; at the last one every sample leaves.

    Returns
    -------
    (shortcut, lambda, sample) places on the layer axis
    """
    shape = (len(confidence), len(limits), limits.shape[1])
    place = np.full(shape, allowed[-1], np.intp)
    for at in allowed[-2::-1]:
        sure = confidence[:, None, at] > limits
        place[sure] = at
    return place


def crossing(cost: Floats | NDArray[np.int64], accuracy: Floats, levels: Sequence[float]) -> Floats:
    """Cost from which on a curve, its points joined by straight lines, holds each level.

    Parameters
    ----------
    cost, accuracy : (curves, points) arrays
        Points are put in order of cost (then accuracy); the last should hold every level.
    levels : sequence of float

    Returns
    -------
    (curves, levels) float64
        The cost at the last upward crossing; the first point's where all points hold the level;
        NaN where the last point does not.
    """
    cost = np.asarray(cost, np.float64)
    order = np.lexsort((accuracy, cost), axis=1)
    x, y = (np.take_along_axis(part, order, axis=1) for part in (cost, accuracy))
    found = np.empty((len(x), len(levels)))
    rows = np.arange(len(x))
    for column, level in enumerate(levels):
        below = y < level - 1e-12
        start = x.shape[1] - 1 - below[:, ::-1].argmax(axis=1)
        never, always = below[:, -1], ~below.any(axis=1)
        start = np.minimum(start, x.shape[1] - 2) if x.shape[1] > 1 else np.zeros_like(start)
        end = np.minimum(start + 1, x.shape[1] - 1)
        rise = y[rows, end] - y[rows, start]
        part = (level - y[rows, start]) / np.where(rise > 0, rise, 1)
        value = x[rows, start] + part * (x[rows, end] - x[rows, start])
        found[:, column] = np.where(never, np.nan, np.where(always, x[:, 0], value))
    return found


def saved_table(dataset: xr.Dataset) -> str:
    """Layers saved as a table for the terminal.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `sweep` returned.
    """
    shortcuts = dataset.shortcut.values.tolist()
    lines = [
        f"{dataset.attrs['title']}: layers saved of {dataset.attrs['n_blocks']}, "
        f"{count(dataset.attrs['samples'], 'sample')}",
        "exit     P@1    " + "".join(f"{name:<30}" for name in shortcuts).rstrip(),
    ]
    for policy in dataset.policy.values.tolist():
        for level in dataset.level.values.tolist():
            cells = []
            for name in shortcuts:
                at = dataset.sel(policy=policy, level=level, shortcut=name)
                value, low, high = (float(at["saved" + end]) for end in ("", "_low", "_high"))
                share = 100 * float(at.saved_share)
                cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}] ({share:.1f}%)".ljust(30))
            lines.append(f"{policy:<8} {level:<6g} {''.join(cells)}".rstrip())
    return "\n".join(lines)


def _resampled(values: NDArray, codes: NDArray[np.intp], counts: Floats, sizes: Floats) -> Floats:
    """Mean over samples of each row of `values` in each resample, (resample, row)."""
    groups = counts.shape[1]
    sums = np.stack([np.bincount(codes, weights=row, minlength=groups) for row in values], axis=1)
    means: Floats = counts @ sums / sizes[:, None]
    return means


def _swept(
    shortcuts: Sequence[str], lambdas: Mapping[str, Sequence[float]] | Sequence[float] | None
) -> dict[str, tuple[float, ...]]:
    if lambdas is None:
        lambdas = LAMBDAS
    swept = {}
    for name in shortcuts:
        values = lambdas.get(name, ()) if isinstance(lambdas, Mapping) else lambdas
        swept[name] = tuple(sorted({float(value) for value in values}))
        if not swept[name] or not np.isfinite(swept[name]).all():
            raise AnalysisError(f"lambdas for {name!r} are {tuple(values)}; give finite numbers")
    return swept


def _checked_levels(levels: Sequence[float]) -> list[float]:
    chosen = sorted({float(level) for level in levels})
    if not chosen or not (chosen[0] > 0 and chosen[-1] <= 1):
        raise AnalysisError(f"levels={tuple(levels)}; each is a share of samples in (0, 1]")
    return chosen
