"""How much each block turns the stream: block influence and angular distance, streamed.

Block influence is ShortGPT's ("ShortGPT: Layers in Large Language Models are More Redundant Than
You Expect", arXiv 2403.03853, §3); angular distance is that of "The Unreasonable Ineffectiveness
of the Deeper Layers" (arXiv 2403.17887, §3.2). Both rank blocks for pruning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import t as student_t
from tqdm import tqdm

from actstore.errors import AnalysisError, NonFiniteError, SiteError
from analysis import results, stats
from analysis.comparing import add, groups_of
from analysis.decoding import SITE
from analysis.tokens import drop_first

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95
MEMORY = 64 * 2**20
MOST_GROUPS = 512
Floats = NDArray[np.float64]


def block_influence(
    run: Run,
    *,
    first_token: str | int = "keep",
    cluster: str | None = "document",
    seed: int = 0,
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """1 − E[cos(h_i, h_{i+1})] of each layer and the next in view.

    Parameters
    ----------
    run : Run
        With two or more layers of the residual stream.
    first_token
        As for `analysis.linearity.scores`; this mean gives every sample the same weight, whatever
        its norm.
    cluster : str or None
        Sample coordinate whose values mark dependent samples; None: all are independent. More
        than 512 clusters are dealt out to 512 groups of them, which keeps intervals right and
        memory flat.
    seed : int
        Of that deal.
    memory : int
        Bytes of rows held at a time; the number of samples does not matter to it.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``influence`` (source), between 0 and 2, with ``_low`` and ``_high``, the ends of
        cluster-robust 95% Student t intervals, and ``left_out`` (source), the samples without a
        direction: a row that is all zero in either layer. Coordinate ``target``, the next layer.
        NaN where no sample is left.

    Raises
    ------
    AnalysisError, SiteError
        Fewer than two layers in view, no samples, or an unknown coordinate.
    NonFiniteError
        A state is NaN or infinite.
    """
    kept = drop_first(run, first_token)
    layers = _layers(kept)
    groups = _groups(kept, cluster, seed)
    walk = _Walk(kept, layers, [1], groups, memory, progress)
    interval, left_out = walk.means(lambda cosines: 1 - cosines)
    dataset = xr.Dataset(coords={"source": layers[:-1], "target": ("source", layers[1:])})
    add(dataset, "influence", ("source",), stats.Interval(*(ends[0] for ends in interval)))
    dataset["left_out"] = (("source",), left_out[0])
    return _labelled(
        dataset, "influence", "block_influence", kept, run, groups, cluster, first_token, seed
    )


def angular_distance(
    run: Run,
    span: int | Iterable[int] | None = None,
    *,
    first_token: str | int = "keep",
    cluster: str | None = "document",
    seed: int = 0,
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """E[arccos(cos(h_l, h_{l+n}))]/π: how far n blocks from layer l on turn the stream.

    The paper takes the last token of each text alone (``positions="last"``); here it is the
    samples of the run, whichever they are.

    Parameters
    ----------
    run : Run
        Its layers of the residual stream follow each other without a gap.
    span : int or iterable of int, optional
        Numbers of blocks n; default: all.
    first_token, cluster, seed, memory, progress
        As for `block_influence`.

    Returns
    -------
    xarray.Dataset
        ``distance`` (span, source), between 0 and 1, with ``_low`` and ``_high``, and
        ``left_out`` (span, source); NaN beyond the last layer. Angles below about 1e-8 are
        rounding.

    Raises
    ------
    AnalysisError, SiteError, NonFiniteError
        As for `block_influence`; also a span that does not fit, or layers with gaps.
    """
    kept = drop_first(run, first_token)
    layers = _layers(kept)
    if layers != list(range(layers[0], layers[-1] + 1)):
        raise AnalysisError(f"spans of blocks need layers without gaps, but {layers} are in view")
    most = len(layers) - 1
    asked = range(1, most + 1) if span is None else [span] if isinstance(span, int) else span
    spans = sorted({int(n) for n in asked})
    if not spans or spans[0] < 1 or spans[-1] > most:
        raise AnalysisError(f"span={span!r}: each span lies in 1…{most}, the blocks in view")
    groups = _groups(kept, cluster, seed)
    walk = _Walk(kept, layers, spans, groups, memory, progress)
    interval, left_out = walk.means(lambda cosines: np.arccos(cosines) / np.pi)
    dataset = xr.Dataset(coords={"span": spans, "source": layers[:-1]})
    dims = ("span", "source")
    add(dataset, "distance", dims, stats.Interval(*(_padded(ends, most) for ends in interval)))
    dataset["left_out"] = (dims, _padded(left_out, most))
    return _labelled(
        dataset,
        "angular_distance",
        "angular_distance",
        kept,
        run,
        groups,
        cluster,
        first_token,
        seed,
        spans=spans,
    )


class _Walk:
    """One pass over the rows: sums of a function of cosines by span, source and group."""

    def __init__(
        self,
        run: Run,
        layers: Sequence[int],
        spans: Sequence[int],
        groups: NDArray[np.intp],
        memory: int,
        progress: bool | None,
    ) -> None:
        self.run, self.layers, self.spans, self.groups = run, layers, spans, groups
        self.rows = max(1, memory // (len(layers) * run.width(SITE) * 8))
        self.progress = progress

    def means(
        self, function: Callable[[Floats], Floats]
    ) -> tuple[list[list[Floats]], list[NDArray[np.int64]]]:
        """Value, low and high of each span, a (sources,) array each; and the samples left out."""
        count = int(self.groups.max()) + 1
        shapes = [(len(self.layers) - span, count) for span in self.spans]
        sums, taken = [np.zeros(s) for s in shapes], [np.zeros(s) for s in shapes]
        bar = tqdm(
            total=self.run.n_samples,
            desc="turns",
            unit="sample",
            disable=None if self.progress is None else not self.progress,
            file=sys.stderr,
        )
        with bar:
            for block in self.run.row_blocks(self.rows):
                units, present = self._directions(block)
                members = self.groups[block.out]
                for number, span in enumerate(self.spans):
                    cosines = np.einsum("lnd,lnd->ln", units[:-span], units[span:])
                    both = present[:-span] & present[span:]
                    values = np.where(both, function(np.clip(cosines, -1, 1)), 0.0)
                    for source in range(len(values)):
                        sums[number][source] += np.bincount(members, values[source], count)
                        taken[number][source] += np.bincount(members, both[source], count)
                bar.update(units.shape[1])
        found = [_interval(s, t) for s, t in zip(sums, taken, strict=True)]
        left = [(self.run.n_samples - t.sum(axis=1)).astype(np.int64) for t in taken]
        return [[interval[end] for interval in found] for end in range(3)], left

    def _directions(self, block: object) -> tuple[Floats, NDArray[np.bool_]]:
        """(layers, rows, width) rows of length 1, and which rows have a direction."""
        states = np.stack([self.run.read(SITE, layer, block) for layer in self.layers])  # type: ignore[arg-type]
        units = states.astype(np.float64)
        norms = np.linalg.norm(units, axis=2)
        if not np.isfinite(norms).all():
            layer = self.layers[int(np.argwhere(~np.isfinite(norms))[0, 0])]
            raise NonFiniteError(
                f"{self.run.model}/{self.run.corpus}: layer {layer} has NaN or infinity; leave "
                "those samples out with run.isel(sample=...)"
            )
        present = norms > 0
        units /= np.where(present, norms, 1.0)[..., None]
        return units, present


def _interval(sums: Floats, taken: Floats) -> stats.Interval:
    """Mean over samples with a cluster-robust interval, from sums and counts of each group.

    G/(G−1) Σ_g (S_g − n_g x̄)²/n², as `analysis.stats.mean` has it.
    """
    n = taken.sum(axis=1)
    groups = (taken > 0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(axis=1) / n
        squares = ((sums - taken * mean[:, None]) ** 2).sum(axis=1)
        error = np.sqrt(groups / (groups - 1) * squares) / n
        reach = student_t.ppf((1 + LEVEL) / 2, groups - 1) * error
    reach = np.where(groups > 1, reach, np.nan)
    return stats.Interval(mean, mean - reach, mean + reach)


def _groups(run: Run, cluster: str | None, seed: int) -> NDArray[np.intp]:
    labels = groups_of(run, cluster)
    clusters = np.arange(run.n_samples) if labels is None else labels
    values, members = np.unique(clusters, return_inverse=True)
    if len(values) <= MOST_GROUPS:
        return members
    deal = np.empty(len(values), np.intp)
    order = np.random.default_rng(seed).permutation(len(values))
    deal[order] = np.arange(len(values)) % MOST_GROUPS
    return deal[members]


def _layers(run: Run) -> list[int]:
    if SITE not in run.sites:
        raise SiteError(f"{run.model}/{run.corpus} has no {SITE!r}, only {', '.join(run.sites)}")
    layers = list(run.sites[SITE])
    if len(layers) < 2:
        raise AnalysisError(f"two layers of {SITE!r} are needed, but {layers} are in view")
    return layers


def _padded(rows: Sequence[NDArray], length: int) -> NDArray:
    table = np.full((len(rows), length), np.nan)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def _labelled(
    dataset: xr.Dataset,
    kind: str,
    function: str,
    kept: Run,
    run: Run,
    groups: NDArray[np.intp],
    cluster: str | None,
    first_token: str | int,
    seed: int,
    **parameters: object,
) -> xr.Dataset:
    dataset.attrs.update(
        samples=kept.n_samples,
        dropped=run.n_samples - kept.n_samples,
        clusters=int(groups.max()) + 1,
        cluster=cluster or "sample",
        level=LEVEL,
    )
    record = results.provenance(
        f"analysis.influence.{function}",
        runs={"samples": kept},
        first_token=first_token,
        cluster=cluster,
        seed=seed,
        **parameters,  # type: ignore[arg-type]
    )
    title = f"{run.model} on {run.corpus}" + (
        ", without the first token" if first_token != "keep" else ""
    )
    return results.label(dataset, kind, title, record)
