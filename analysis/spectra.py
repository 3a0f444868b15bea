"""How many directions a layer uses, and how far its rows lean one way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError
from actstore.grams import Gram, gram, make_parts
from analysis import jackknife, results
from analysis.comparing import add
from analysis.stats import Interval

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95
MEMORY = 64 * 2**20
GROUPS = 20
Floats = NDArray[np.float64]


def layers(
    on: Run | Gram,
    *,
    fractions: Sequence[float] = (0.5, 0.9, 0.99),
    parts: Any = None,
    cosines: bool = True,
    progress: bool | None = None,
) -> xr.Dataset:
    """Spectrum of every layer's rows, what follows from it, and their mean cosine.

    With σ₁ ≥ σ₂ ≥ … the singular values of the rows about their mean:

    * ``effective_rank``: exp(−Σ p ln p), p = σ/Σσ ("The effective rank: a measure of effective
      dimensionality", Roy & Vetterli 2007, EUSIPCO, §2);
    * ``participation_ratio``: (Σσ²)²/Σσ⁴;
    * ``top_share``: σ₁²/Σσ², the anisotropy of "The Shape of Learning" (Razzhigaev et al. 2023,
      arXiv 2311.05928, §3);
    * ``rank_for``: principal components that hold a fraction of the variance;
    * ``spectrum``: σ²/Σσ² of each principal component.

    All of it follows from the Gram, and so does ``mean_share`` = ‖E x‖²/E‖x‖². ``mean_cosine``,
    the mean cosine of two different samples, the anisotropy of "How Contextual are
    Contextualized Word Representations?" (Ethayarajh 2019, arXiv 1909.00512, §3.3), does not,
    since every row is scaled to unit norm: it takes a pass over the rows, and is exact over all
    pairs, (‖Σu‖² − n)/(n(n − 1)) of the unit rows u.

    Parameters
    ----------
    on : Run or Gram
        A Run's Gram is of its ``resid`` where it has that, else of all its sites.
    fractions : sequence of float
        For ``rank_for``, in (0, 1].
    parts : optional
        As for `actstore.gram`: jackknife intervals of what follows from the Gram. A Gram given
        has intervals where it keeps parts.
    cosines : bool
        Also read the rows for ``mean_cosine``; of a Gram only where its run is at hand. Its
        interval is a jackknife over up to 20 groups of whole documents.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        Variables (layer), ``rank_for`` (layer, fraction) and ``spectrum`` (layer, component), NaN
        beyond a layer's width; ``_low`` and ``_high`` are the ends of 95% intervals.
        ``no_direction`` (layer): rows that are all zero, left out of the cosines.

    Raises
    ------
    AnalysisError
        A fraction outside (0, 1], fewer than two rows, or a layer that does not vary.
    """
    wanted = [float(fraction) for fraction in fractions]
    if not all(0 < fraction <= 1 for fraction in wanted):
        raise AnalysisError(f"fractions={tuple(fractions)}: each is a share in (0, 1], such as 0.9")
    moments = (
        on if isinstance(on, Gram) else gram(on, pairs="within", parts=parts, progress=progress)
    )
    if moments.n < 2:
        raise AnalysisError(f"{moments.n} rows have no spectrum: at least two are needed")
    columns = moments.columns
    single = len(columns.sites) == 1
    names = [column.layer if single else str(column) for column in columns]
    dataset = xr.Dataset(coords={"layer": names, "fraction": wanted})
    whole = _from_gram(moments, wanted)
    without = [_from_gram(moments.without(k), wanted) for k in range(len(moments.parts))]
    for name, values in whole.items():
        dims = ("layer", "fraction") if name == "rank_for" else ("layer",)
        if name == "spectrum":
            dataset[name] = (("layer", "component"), values, {"units": "1"})
        elif without:
            rest = np.stack([part[name] for part in without])
            sizes = [part.n for part in moments.parts]
            add(dataset, name, dims, jackknife.interval(values, rest, sizes, level=LEVEL))
        else:
            dataset[name] = (dims, values, {"units": "1"})
    run = moments.run if isinstance(on, Gram) else on
    if cosines and run is not None:
        found, lost = _mean_cosines(run, moments, progress)
        add(dataset, "mean_cosine", ("layer",), found)
        dataset["no_direction"] = ("layer", lost)
    corpora = ", ".join(dict.fromkeys(entry["corpus"] for entry in moments.provenance["runs"]))
    dataset.attrs.update(samples=moments.n, level=LEVEL, parts=len(moments.parts))
    record = results.provenance(
        "analysis.spectra.layers",
        gram=moments.provenance,
        fractions=wanted,
        parts=len(moments.parts),
        cosines="mean_cosine" in dataset,
    )
    return results.label(dataset, "spectra", f"{moments.model} on {corpora}", record)


def _from_gram(moments: Gram, fractions: Sequence[float]) -> dict[str, Floats]:
    columns = moments.columns
    size = len(columns)
    names = ("effective_rank", "participation_ratio", "top_share", "mean_share")
    found = {name: np.empty(size) for name in names}
    found["rank_for"] = np.empty((size, len(fractions)))
    found["spectrum"] = np.full((size, max(column.width for column in columns)), np.nan)
    for k, (column, key) in enumerate(zip(columns, columns.keys(), strict=True)):
        own = moments.cross(key, key, centred=True)
        values = np.maximum(np.linalg.eigvalsh(own)[::-1], 0.0)
        if not values[0] > 0:
            raise AnalysisError(f"{column} is the same in all {moments.n:,} samples: leave it out")
        share = values / values.sum()
        single = np.sqrt(values) / np.sqrt(values).sum()
        single = single[single > 0]
        found["effective_rank"][k] = np.exp(-(single * np.log(single)).sum())
        found["participation_ratio"][k] = 1 / (share**2).sum()
        found["top_share"][k] = share[0]
        mean = moments.mean(key)
        between = moments.n * float(mean @ mean)
        found["mean_share"][k] = between / (between + values.sum())
        reached = np.cumsum(share)
        places = np.searchsorted(reached, np.array(fractions) * (1 - 1e-12)) + 1
        found["rank_for"][k] = np.minimum(places, len(share))
        found["spectrum"][k, : len(share)] = share
    return found


def _mean_cosines(run: Any, moments: Gram, progress: bool | None) -> tuple[Interval, NDArray]:
    """Mean cosine of all pairs of different rows at each layer, and rows without a direction."""
    columns = moments.columns
    numbers, groups = np.zeros(run.n_samples, np.intp), 1
    n_documents = len(np.unique(run.coordinate("document"))) if hasattr(run, "coordinate") else 1
    if n_documents > 1:
        groups = min(GROUPS, n_documents)
        numbers = make_parts(run, groups).numbers
    width = max(column.width for column in columns)
    blocks = run.row_blocks(max(1, MEMORY // (8 * width)))
    sums = [np.zeros((groups, column.width)) for column in columns]
    counts = np.zeros((len(columns), groups), np.int64)
    bar = tqdm(
        total=len(blocks) * len(columns),
        desc="cosines",
        unit="block",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for block in blocks:
            for k, column in enumerate(columns):
                rows = np.asarray(run.read(column.site, column.layer, block), np.float64)
                norms = np.linalg.norm(rows, axis=1)
                kept = norms > 0
                group = numbers[block.out][kept]
                units = rows[kept] / norms[kept, None]
                for number in np.unique(group):
                    sums[k][number] += units[group == number].sum(axis=0)
                counts[k] += np.bincount(group, minlength=groups)
                bar.update()
    total = counts.sum(axis=1)
    value = np.array([_of_pairs(s.sum(axis=0), n) for s, n in zip(sums, total, strict=True)])
    left = np.array(
        [
            [
                _of_pairs(s.sum(axis=0) - s[number], n - count[number])
                for s, n, count in zip(sums, total, counts, strict=True)
            ]
            for number in range(groups)
        ]
    )
    sizes = np.bincount(numbers, minlength=groups)
    return jackknife.interval(value, left, sizes, level=LEVEL), run.n_samples - total


def _of_pairs(total: Floats, n: int) -> float:
    return float((total @ total - n) / (n * (n - 1))) if n > 1 else np.nan
