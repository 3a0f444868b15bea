"""How alike two layers are, of one model or of two: CKA, SVCCA, PWCCA, Procrustes distance.

All of them follow from the joint Gram of the two layers, width × width; no matrix of samples by
samples is ever made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError
from actstore.grams import Gram, align, gram
from actstore.grams.threads import available_cores, one_blas_thread
from analysis import jackknife, results
from analysis.canonical import (
    canonical,
    components_for,
    correlations,
    projection_weights,
    side,
    whitened,
)
from analysis.comparing import add

if TYPE_CHECKING:
    from actstore.store import Run

MEASURES = ("cka", "svcca", "pwcca", "procrustes")
LEVEL = 0.95
Tables = dict[str, NDArray[np.float64]]


def layers(
    a: Run | Gram,
    b: Run | None = None,
    *,
    measures: Sequence[str] = MEASURES,
    variance: float = 0.99,
    by: Sequence[str] = ("document", "position"),
    parts: Any = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Similarity of every pair of layers of a run, or of the layers of two runs.

    With X and Y the rows of two layers, each feature centred:

    * ``cka``: ‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F), linear CKA ("Similarity of Neural Network
      Representations Revisited", Kornblith et al. 2019, arXiv 1905.00414, §3). 0…1.
    * ``svcca``: the mean canonical correlation of the leading principal components that hold
      `variance` of each side ("SVCCA", Raghu et al. 2017, arXiv 1706.05806, §2). 0…1.
    * ``pwcca``: the mean of all canonical correlations weighted by Σ_j |⟨h_i, x_j⟩|, how much
      of X each variate h_i accounts for (Morcos et al. 2018, arXiv 1806.05759, §2.3). The
      weights are of the layer on ``a``, so it is not symmetric. 0…1.
    * ``procrustes``: 2 − 2‖XᵀY‖_*/(‖X‖_F ‖Y‖_F), the squared orthogonal Procrustes distance of
      the rows scaled to unit norm ("Grounding Representation Similarity with Statistical
      Testing", Ding et al. 2021, arXiv 2108.01661, §2). 0 (equal up to rotation, scale and
      shift)…2.

    CKA and Procrustes weigh directions by their variance, CCA does not: where the samples are
    not many times the features, canonical correlations are high whatever the layers are
    (Kornblith et al. §6), and 1 where there are no more samples than features.

    Parameters
    ----------
    a : Run or Gram
        A Run's Gram is of its ``resid`` where it has that, else of all its sites; it is taken
        from the store where it is kept there. A Gram may have any sites, and be one of aligned
        runs.
    b : Run, optional
        Another model, or another setting of the same, on the same samples; `actstore.grams.align`
        pairs them. Default: layers of `a` against each other.
    measures : sequence of str
    variance : float
        Share of the variance that SVCCA keeps.
    by : sequence of str
        Sample coordinates that pair the samples of two runs.
    parts : optional
        As for `actstore.gram`, such as ``10``: jackknife intervals over so many groups of whole
        documents, at eleven times the work. A Gram given has intervals where it keeps parts.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        One variable for each measure, (a, b); with parts also its ``_low`` and ``_high``, 95%
        intervals. ``components`` (a) and ``components_b`` (b): how many SVCCA kept.

    Raises
    ------
    AnalysisError
        An unknown measure, a variance outside (0, 1], a layer that does not vary, or a Gram with
        a second run.
    GramError, SiteError
        The runs have no samples in common, or nothing is in view.
    """
    unknown = [name for name in measures if name not in MEASURES]
    if unknown or not measures:
        raise AnalysisError(f"measure {unknown[0] if unknown else ''!r}; choose from {MEASURES}")
    if not 0 < variance <= 1:
        raise AnalysisError(f"variance={variance!r}: a share in (0, 1] is needed, such as 0.99")
    joint, rows, columns = _joint(a, b, by, parts, progress)
    leave_out = len(joint.parts) if len(joint.parts) > 1 else 0
    pairs = [(i, j) for i in rows for j in columns if b is not None or j >= i]
    bar = tqdm(
        total=len(pairs) * (1 + leave_out),
        desc="similarity",
        unit="pair",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    tables = partial(_tables, pairs=pairs, measures=measures, variance=variance, done=bar.update)
    with bar:
        whole = tables(joint)
        without = [tables(joint.without(number)) for number in range(leave_out)]

    names = [_name(joint, place) for place in rows], [_name(joint, place) for place in columns]
    dataset = xr.Dataset(coords={"a": names[0], "b": names[1]})
    for name, table in whole.items():
        table = table[np.ix_(rows, columns)]
        if without:
            rest = np.stack([part[name][np.ix_(rows, columns)] for part in without])
            sizes = [part.n for part in joint.parts]
            add(dataset, name, ("a", "b"), jackknife.interval(table, rest, sizes, level=LEVEL))
        else:
            dataset[name] = (("a", "b"), table, {"units": "1"})
    if "svcca" in measures:
        kept = {place: _components(joint, place, variance) for place in {*rows, *columns}}
        dataset["components"] = ("a", [kept[place] for place in rows])
        dataset["components_b"] = ("b", [kept[place] for place in columns])
    corpora = ", ".join(dict.fromkeys(run["corpus"] for run in joint.provenance["runs"]))
    dataset.attrs.update(samples=joint.n, level=LEVEL, parts=leave_out, variance=variance)
    record = results.provenance(
        "analysis.similarity.layers",
        gram=joint.provenance,
        measures=list(measures),
        variance=variance,
        parts=leave_out,
    )
    return results.label(dataset, "similarity", f"{joint.model} on {corpora}", record)


def _joint(
    a: Run | Gram, b: Run | None, by: Sequence[str], parts: Any, progress: bool | None
) -> tuple[Gram, list[int], list[int]]:
    """The Gram, and the places of its columns on either axis."""
    if isinstance(a, Gram):
        if b is not None:
            raise AnalysisError(
                "the Gram of one run does not tell how it goes with another: give both runs, or "
                "the one Gram of actstore.grams.align(a, b)"
            )
        return a, list(range(len(a.columns))), list(range(len(a.columns)))
    if b is None:
        joint = gram(a, parts=parts, progress=progress)
        return joint, list(range(len(joint.columns))), list(range(len(joint.columns)))
    pair = align(a, b, by=by)
    sites = [_main_sites(name, run) for name, run in zip(pair.names, pair.runs, strict=True)]
    joint = gram(pair, sites=[*sites[0], *sites[1]], parts=parts, progress=progress)
    of_a = [k for k, column in enumerate(joint.columns) if column.site in sites[0]]
    return joint, of_a, [k for k in range(len(joint.columns)) if k not in of_a]


def _main_sites(name: str, run: Any) -> list[str]:
    return [f"{name}:{site}" for site in (("resid",) if "resid" in run.sites else run.sites)]


def _name(joint: Gram, place: int) -> int | str:
    column = joint.columns[place]
    return column.layer if len(joint.columns.sites) == 1 else str(column)


def _tables(
    joint: Gram,
    *,
    pairs: Sequence[tuple[int, int]],
    measures: Sequence[str],
    variance: float,
    done: Callable[[], object],
) -> Tables:
    """Every measure of every pair, (columns, columns); NaN for pairs that are not asked for."""
    size = len(joint.columns)
    found = {name: np.full((size, size), np.nan) for name in measures}
    places = sorted({place for pair in pairs for place in pair})
    moments = {place: _centred(joint, place, place) for place in places}
    sides = {}
    if {"svcca", "pwcca"} & set(measures):
        eps = float(np.finfo(_digits(joint)).eps)
        sides = {place: side(moments[place], eps) for place in places}

    def measure(i: int, j: int) -> None:
        cross = moments[i] if i == j else _centred(joint, i, j)
        if "cka" in found:
            norms = np.linalg.norm(moments[i]) * np.linalg.norm(moments[j])
            found["cka"][i, j] = found["cka"][j, i] = np.linalg.norm(cross) ** 2 / norms
        if "procrustes" in found:
            nuclear = np.linalg.svd(cross, compute_uv=False).sum()
            norms = np.sqrt(np.trace(moments[i]) * np.trace(moments[j]))
            found["procrustes"][i, j] = found["procrustes"][j, i] = max(2 - 2 * nuclear / norms, 0)
        if not sides:
            return
        core = whitened(sides[i], sides[j], cross)
        if "svcca" in found:
            k, m = (components_for(sides[place].values, variance) for place in (i, j))
            found["svcca"][i, j] = found["svcca"][j, i] = correlations(core[:k, :m]).mean()
        if "pwcca" in found:
            cca = canonical(core)
            for p, q, directions in ((i, j, cca.left), (j, i, cca.right)):
                weights = projection_weights(sides[p], directions)
                found["pwcca"][p, q] = cca.correlations @ weights / weights.sum()

    with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
        jobs = [pool.submit(measure, i, j) for i, j in pairs]
        for job in as_completed(jobs):
            job.result()
            done()
    return found


def _components(joint: Gram, place: int, variance: float) -> int:
    moments = _centred(joint, place, place)
    return components_for(side(moments, float(np.finfo(_digits(joint)).eps)).values, variance)


def _centred(joint: Gram, i: int, j: int) -> NDArray[np.float64]:
    columns = joint.columns
    moments = joint.cross(columns[i], columns[j], centred=True)
    if i == j and not np.trace(moments) > 0:
        raise AnalysisError(f"{columns[i]} is the same in all {joint.n:,} samples: leave it out")
    return moments


def _digits(joint: Gram) -> str:
    return "float64" if joint.provenance["precision"] == "float64" else "float32"
