"""How linear the step from one layer to another is, from Grams alone.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §3: with X and Y the states of two layers
over the same tokens, both centred, X̃ = X/‖X‖_F and Ỹ = Y/‖Y‖_F, the score is
1 − min_A ‖X̃A − Ỹ‖²_F = tr(S_yx S_xx⁺ S_xy)/tr(S_yy).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from actstore.errors import AnalysisError
from actstore.grams import Gram
from actstore.grams.threads import available_cores, one_blas_thread
from actstore.wording import count
from analysis import jackknife, results, stats
from analysis.linearity.held_out import HELD_OUT, check_held_out, held_out_statistics
from analysis.linearity.kernel import NAMES, Floats, Pair
from analysis.tokens import drop_first
from analysis.windows import MEMORY, Window, row_parts, windows

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95


def scores(
    on: Run | Gram,
    *,
    pairs: str | Iterable[tuple[int, int]] = "adjacent",
    held_out: Run | Gram | None = None,
    orthogonal: bool = True,
    first_token: str | int = "keep",
    cluster: str | None = "document",
    parts: int = 20,
    seed: int = 0,
    site: str = "resid",
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Linearity scores of pairs of layers, with the residual and without it.

    In-sample, as published: A is the best map of the very samples it is judged on. With
    `held_out` also out of sample. Both layers are centred per column. Where the source's rows do
    not determine A, the score is that of any of the best; a source that does not vary scores 0,
    and a target that does not vary has none (NaN). With no more samples than features every step
    is linear in-sample, and a warning says so.

    Parameters
    ----------
    on : Run or Gram
        Samples. Of a Gram, its ``parts`` (``gram(run, parts=20)``) serve for the intervals.
    pairs : {"adjacent", "all", "to_last", "ordered"} or list of (source, target)
    held_out : Run or Gram, optional
        Samples of the same model and other documents, on which maps with an intercept fitted on
        `on` are judged.
    orthogonal : bool
        Whether to compute that score too.
    first_token : {"keep", "drop"} or int
        "drop" leaves out the samples at position 0 of their sequence, the attention sink of most
        decoders, whose norm can outweigh all others in the Frobenius norms; a number leaves out
        as many leading positions. Of runs only.
    cluster : str or None
        Sample coordinate whose values mark dependent samples; None: all are independent.
    parts : int
        Groups of whole clusters for the jackknife; fewer where there are fewer clusters. Below 2:
        no intervals.
    seed : int
        Of the deal of clusters to groups.
    site : str
        What to score of a run.
    memory : int
        Bytes of moments held at a time for a run, those of two layers at least; the number of
        samples does not matter.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        For adjacent layers over ``source``, with a coordinate ``target``; else over (source,
        target), NaN for pairs not asked for. Each with ``_low`` and ``_high``, the ends of 95%
        delete-m_j jackknife intervals over groups of clusters:

        * ``score``;
        * ``score_no_residual``: for the target Y − X, what the block adds to the stream; NaN
          where widths differ or nothing is added. 1 − this = (1 − score)·‖Y_c‖²/‖Y_c − X_c‖²;
        * ``orthogonal``: A restricted to rotations with one scale, ‖X̃ᵀỸ‖²_* (1 − the disparity of
          `scipy.spatial.procrustes`); with no free scale it is 2√orthogonal − 1;
        * ``output_over_stream``: ‖Y − X‖_F/‖X‖_F, nothing centred;
        * with `held_out`, ``held_out`` = 1 − Σ‖y − xA − b‖²/‖Y_c‖²_F over its samples, Y centred
          about their own mean, and ``held_out_no_residual``, the same error over
          ‖Y_c − X_c‖²_F. Both may be below 0. Their intervals take A as given.

    Raises
    ------
    AnalysisError
        Options that do not go with a Gram, no samples left, an unknown cluster coordinate.
    FitError, SiteError, GramError, NonFiniteError
        Unknown pairs or layers, or rows that cannot be used.
    """
    if isinstance(on, Gram) and first_token != "keep":
        raise AnalysisError(
            f"first_token={first_token!r} leaves samples out, which a Gram cannot: give the run"
        )
    source = on if isinstance(on, Gram) else drop_first(on, first_token)
    judge = held_out
    if held_out is not None and not isinstance(held_out, Gram):
        judge = drop_first(held_out, first_token)
    if judge is not None:
        check_held_out(source, judge)
    names = [*NAMES, *(HELD_OUT if judge is not None else ())]
    found: dict[tuple[int, int], stats.Interval] = {}
    groups = 0
    division = row_parts(source, cluster, parts, seed)
    judging = row_parts(judge, cluster, parts, seed) if judge is not None else None
    chosen = windows(source, pairs, site, division, memory, progress)
    for window in chosen:
        _warn_if_short(window)
        groups = len(window.moments.parts)
        values = _intervals(window, orthogonal, progress if isinstance(source, Gram) else False)
        if judge is not None:
            shown = progress if isinstance(source, Gram) else False  # else the windows have a bar
            beside = held_out_statistics(window, judge, site, judging, LEVEL, shown)
            values = {pair: _joined(values[pair], beside[pair]) for pair in values}
        found.update(values)
    dataset = tabulate(found, names, pairs == "adjacent")
    if not orthogonal:
        dataset = dataset.drop_vars([n for n in dataset if str(n).startswith("orthogonal")])
    samples, total = (one.n if isinstance(one, Gram) else one.n_samples for one in (source, on))
    model, corpus = _names(source)
    dataset.attrs = {
        "samples": samples,
        "dropped": total - samples,
        "first_token": str(first_token),
        "parts": groups,
        "cluster": "part" if isinstance(on, Gram) else cluster or "sample",
        "level": LEVEL,
    }
    roles = {"samples": source} if judge is None else {"samples": source, "held_out": judge}
    record = results.provenance(
        "analysis.linearity.scores",
        runs={role: run for role, run in roles.items() if not isinstance(run, Gram)},
        grams={role: one.provenance for role, one in roles.items() if isinstance(one, Gram)},
        pairs=pairs if isinstance(pairs, str) else [list(pair) for pair in found],
        orthogonal=orthogonal,
        first_token=first_token,
        cluster=cluster,
        parts=parts,
        seed=seed,
        site=site,
    )
    title = f"{model} on {corpus}" + (", without the first token" if first_token != "keep" else "")
    return results.label(dataset, "linearity", title, record)


def transitions(on: Gram) -> Floats:
    """In-sample scores of each layer to the next, for ranking.

    Parameters
    ----------
    on : Gram
        Of one site; its layers in order.

    Returns
    -------
    (layers − 1,) float64
        ``score`` of `scores`; NaN for a target that does not vary.
    """
    pairs = pairwise(on.layers)
    return np.array([Pair.of(on, x, y).statistics()[0] for x, y in pairs])


def replicates(
    window: Window, orthogonal: bool, progress: bool | None = False
) -> dict[tuple[int, int], Floats]:
    """Each pair's statistics, (1 + parts, 4): of all rows, then without each part.

    The rotation is found on all rows and kept: where it is the best, what leaving a part out
    changes about it has no effect of first order.
    """
    counts = len(window.pairs) * orthogonal, len(window.moments.parts) + 1
    moments = window.moments

    def rotation(pair: tuple[int, int]) -> Floats | None:
        return Pair.of(moments, *pair).rotation() if orthogonal else None

    def one(number: int) -> list[Floats]:
        rows = moments if number == 0 else moments.without(number - 1)
        return [Pair.of(rows, *pair).statistics(rotations[pair]) for pair in window.pairs]

    bar = tqdm(
        total=sum(counts),
        desc="linearity",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    rotations: dict[tuple[int, int], Floats | None] = dict.fromkeys(window.pairs)
    with bar, one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        for pair, turned in zip(window.pairs, pool.map(rotation, window.pairs), strict=True):
            rotations[pair] = turned
            bar.update(orthogonal)
        replicated = []
        for values in pool.map(one, range(counts[1])):
            replicated.append(values)
            bar.update()
    found = np.array(replicated)
    return {pair: found[:, number] for number, pair in enumerate(window.pairs)}


def _intervals(
    window: Window, orthogonal: bool, progress: bool | None
) -> dict[tuple[int, int], stats.Interval]:
    sizes = [part.n for part in window.moments.parts]
    return {
        pair: bounded(jackknife.interval(values[0], values[1:], sizes, level=LEVEL))
        for pair, values in replicates(window, orthogonal, progress).items()
    }


def bounded(interval: stats.Interval) -> stats.Interval:
    """Shares lie between 0 and 1, and so do the ends of their intervals; a ratio is positive."""
    upper = np.array([1.0, 1.0, 1.0, np.inf])
    return stats.Interval(
        interval.value, np.maximum(interval.low, 0.0), np.minimum(interval.high, upper)
    )


def _joined(first: stats.Interval, second: stats.Interval) -> stats.Interval:
    return stats.Interval(*(np.concatenate(ends) for ends in zip(first, second, strict=True)))


def tabulate(
    found: dict[tuple[int, int], stats.Interval], names: Sequence[str], adjacent: bool
) -> xr.Dataset:
    """Statistics of pairs, in the order of `names`, as variables with ``_low`` and ``_high``."""
    pairs = sorted(found)
    data: dict[str, Any] = {}
    sources, targets = sorted({x for x, _ in pairs}), sorted({y for _, y in pairs})
    for end, suffix in enumerate(("", "_low", "_high")):
        for number, name in enumerate(names):
            values = np.array([found[pair][end][number] for pair in pairs])
            if adjacent:
                data[name + suffix] = (("source",), values)
                continue
            table = np.full((len(sources), len(targets)), np.nan)
            for (x, y), value in zip(pairs, values, strict=True):
                table[sources.index(x), targets.index(y)] = value
            data[name + suffix] = (("source", "target"), table)
    if adjacent:
        coords: dict[str, Any] = {
            "source": [x for x, _ in pairs],
            "target": ("source", [y for _, y in pairs]),
        }
    else:
        coords = {"source": sources, "target": targets}
    return xr.Dataset(data, coords)


def _names(on: Run | Gram) -> tuple[str, str]:
    if not isinstance(on, Gram):
        return on.model, on.corpus
    return on.model, ", ".join(dict.fromkeys(run["corpus"] for run in on.provenance["runs"]))


def _warn_if_short(window: Window) -> None:
    widest = max(window.moments.width(x) for x, _ in window.pairs)
    if window.moments.n <= widest + 1:
        warnings.warn(
            f"{count(int(window.moments.n), 'sample')} of {widest} features: any step between "
            "layers is linear in-sample with so few; give more samples, or held_out=",
            stacklevel=3,
        )
