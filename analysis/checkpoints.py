"""Linearity over checkpoints: models of one shape on the same tokens, side by side.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §3 follows the score over pretraining and
from base to fine-tuned models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from analysis import jackknife, results, stats
from analysis.linearity.kernel import NAMES, Floats
from analysis.linearity.scoring import LEVEL, bounded, replicates, tabulate
from analysis.tokens import drop_first
from analysis.windows import MEMORY, row_parts, windows

if TYPE_CHECKING:
    from actstore.store import Run

SHOWN_BY = ("document", "position", "token_id", "target_id")


def compare(
    runs: Mapping[str, Run],
    *,
    base: str | None = None,
    pairs: str | Iterable[tuple[int, int]] = "adjacent",
    orthogonal: bool = False,
    first_token: str | int = "keep",
    cluster: str | None = "document",
    parts: int = 20,
    seed: int = 0,
    site: str = "resid",
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Linearity scores of several checkpoints, and what each changes against one of them.

    All are of one shape, on the very same samples; groups of documents are the same for all, so
    that differences are paired.

    Parameters
    ----------
    runs : mapping of checkpoint to Run
        In the order of training, such as ``{"step 1000": ..., "step 2000": ...}``, or base first.
    base : str, optional
        The one that changes are against; default: the first.
    orthogonal : bool
        Whether to compute that score too.
    pairs, first_token, cluster, parts, seed, site, memory, progress
        As for `analysis.linearity.scores`.

    Returns
    -------
    xarray.Dataset
        The variables of `analysis.linearity.scores` with a first dimension ``checkpoint``; for
        each also ``<name>_change``, the checkpoint's less the base's; and ``mean_score`` and
        ``mean_score_change`` (checkpoint), with and without residual
        (``mean_score_no_residual``…), over all pairs. All in-sample, with jackknife intervals.

    Raises
    ------
    AnalysisError
        Fewer than two runs, no such base, or runs of other layers, widths or samples.
    """
    named = {name: drop_first(run, first_token) for name, run in runs.items()}
    if len(named) < 2:
        raise AnalysisError(
            f"two checkpoints or more can be compared, but {list(named)} were given"
        )
    names = list(named)
    against = names[0] if base is None else base
    if against not in named:
        raise AnalysisError(f"base={base!r} is not among {', '.join(map(repr, names))}")
    first = named[names[0]]
    for name in names[1:]:
        _check_alike(names[0], first, name, named[name], site)
    chosen = pairs if isinstance(pairs, str) else list(pairs)
    division = row_parts(first, cluster, parts, seed)
    found: dict[str, dict[tuple[int, int], Floats]] = {name: {} for name in names}
    for name, run in named.items():
        for window in windows(run, chosen, site, division, memory, progress):
            found[name].update(replicates(window, orthogonal))
    sizes = np.bincount(np.empty(0, np.intp) if division is None else division)
    adjacent = chosen == "adjacent"
    both = _side_by_side(found, sizes, adjacent).assign(_changes(found, against, sizes, adjacent))
    both = both.assign(_means(found, against, sizes))
    if not orthogonal:
        both = both.drop_vars([name for name in both if str(name).startswith("orthogonal")])
    both.attrs = {
        "samples": first.n_samples,
        "dropped": runs[names[0]].n_samples - first.n_samples,
        "parts": len(sizes),
        "cluster": cluster or "sample",
        "level": LEVEL,
        "base": against,
    }
    record = results.provenance(
        "analysis.checkpoints.compare",
        runs=named,
        base=against,
        pairs=chosen,
        first_token=first_token,
        cluster=cluster,
        parts=parts,
        seed=seed,
        site=site,
    )
    return results.label(both, "checkpoints", f"{', '.join(names)} on {first.corpus}", record)


def _side_by_side(
    found: Mapping[str, Mapping[tuple[int, int], Floats]], sizes: NDArray[np.intp], adjacent: bool
) -> xr.Dataset:
    tables = [
        tabulate(
            {pair: bounded(_interval(v, sizes)) for pair, v in values.items()}, NAMES, adjacent
        )
        for values in found.values()
    ]
    return _stacked(tables, list(found))


def _changes(
    found: Mapping[str, Mapping[tuple[int, int], Floats]],
    against: str,
    sizes: NDArray[np.intp],
    adjacent: bool,
) -> xr.Dataset:
    names = [f"{name}_change" for name in NAMES]
    tables = [
        tabulate(
            {pair: _interval(v - found[against][pair], sizes) for pair, v in values.items()},
            names,
            adjacent,
        )
        for values in found.values()
    ]
    return _stacked(tables, list(found))


def _means(
    found: Mapping[str, Mapping[tuple[int, int], Floats]], against: str, sizes: NDArray[np.intp]
) -> xr.Dataset:
    means = {name: np.mean(list(values.values()), axis=0) for name, values in found.items()}
    dataset = xr.Dataset(coords={"checkpoint": list(found)})
    for number, name in enumerate(NAMES[:2]):
        for suffix, baseline in (("", 0.0), ("_change", means[against])):
            each = [_interval(values - baseline, sizes) for values in means.values()]
            for end, ending in enumerate(("", "_low", "_high")):
                column = [interval[end][number] for interval in each]
                dataset[f"mean_{name}{suffix}{ending}"] = ("checkpoint", column)
    return dataset


def _stacked(tables: list[xr.Dataset], names: list[str]) -> xr.Dataset:
    return xr.concat(
        tables,
        xr.Variable("checkpoint", names),
        coords="minimal",
        compat="override",
        join="exact",
        data_vars="all",
    )


def _interval(values: Floats, sizes: NDArray[np.intp]) -> stats.Interval:
    """Of (1 + groups, statistics): all samples, then without each group."""
    return jackknife.interval(values[0], values[1:], sizes, level=LEVEL)


def _check_alike(first: str, one: Run, second: str, other: Run, site: str) -> None:
    """AnalysisError unless two runs have the same layers, widths and samples."""
    for name, run in ((first, one), (second, other)):
        if site not in run.sites:
            raise AnalysisError(f"{name!r} has no site {site!r}, only {', '.join(run.sites)}")
    shapes = [(list(run.sites[site]), run.width(site), run.n_samples) for run in (one, other)]
    for what, a, b in zip(("layers", "widths", "numbers of samples"), *shapes, strict=True):
        if a != b:
            raise AnalysisError(
                f"{first!r} and {second!r} are of other {what}: {a} and {b}; compare checkpoints "
                "of one shape on one corpus"
            )
    for coordinate in SHOWN_BY:
        if coordinate in one.samples.variables and coordinate in other.samples.variables:
            ours, theirs = (run.samples[coordinate].values for run in (one, other))
            if not np.array_equal(ours, theirs):
                raise AnalysisError(
                    f"{first!r} and {second!r} differ in {coordinate!r} of their samples: extract "
                    "both from one corpus with the same positions and seed"
                )
