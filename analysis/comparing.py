"""What every layer says against what the model says, sample by sample.

The predictions read off hidden layers are compared with the model's own final distribution one
block of logits at a time; what is kept is a few numbers per sample, layer and readout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from analysis import stats
from analysis.decoding import MEMORY, Readout, require_finite, stream

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predictions of each readout at each layer, all of shape (readout, layer, sample).

    Attributes
    ----------
    tokens : int32
        The best token t; the lowest id where several are best.
    rank : int32
        Tokens with a strictly greater final logit than t's.
    surprisal : float32
        −ln p(t) in nats, p the model's own final distribution.
    confidence : float32, or None
        Gap of the two greatest probabilities of the readout's own distribution.
    """

    tokens: NDArray[np.int32]
    rank: NDArray[np.int32]
    surprisal: NDArray[np.float32]
    confidence: NDArray[np.float32] | None


def compare(
    run: Run,
    model: LanguageModel,
    readouts: Mapping[int, Readout],
    names: Sequence[str],
    *,
    confidence: bool = False,
    memory: int = MEMORY,
    progress: bool | None = None,
) -> Comparison:
    """Best token of every readout, its rank and its surprisal under the final distribution.

    The tokens of all layers come first; the final logits are then computed once for each block
    of samples and asked about all of them. So one block of logits is all that is ever held.

    Parameters
    ----------
    readouts : mapping of layer to {name: LinearMap or None}
        As for `analysis.decoding.stream`. Layer L must be there; its readouts are not used: the
        prediction there is the model's own.
    names : sequence of str
        The readouts, in the order of the results' first axis.
    confidence : bool
        Also give the confidence p₁ − p₂, the gap of the two greatest probabilities that the
        readout itself gives ("Jump to Conclusions" §4).
    """
    layers, last = list(readouts), model.n_blocks
    shape = (len(names), len(layers), run.n_samples)
    tokens = np.empty(shape, np.int32)
    rank = np.empty(shape, np.int32)
    surprisal = np.empty(shape, np.float32)
    sureness = np.empty(shape, np.float32) if confidence else None
    row_of = {name: number for number, name in enumerate(names)}
    column_of = {layer: number for number, layer in enumerate(layers)}

    def keep_best(name: str, layer: int, rows: slice, logits: NDArray[np.float32]) -> None:
        best = logits.argmax(axis=1)
        require_finite(logits[np.arange(len(best)), best], name, layer)
        tokens[row_of[name], column_of[layer], rows] = best
        if sureness is not None:
            sureness[row_of[name], column_of[layer], rows] = confidence_gap(logits, best)

    def ask_final(name: str, layer: int, rows: slice, logits: NDArray[np.float32]) -> None:
        best = logits.argmax(axis=1)
        tokens[:, column_of[last], rows] = best
        asked = tokens[:, :, rows]
        index = np.arange(logits.shape[0])
        values = logits[index, asked]
        require_finite(values, name, layer)
        if sureness is not None:
            sureness[:, column_of[last], rows] = confidence_gap(logits.copy(), best)
        logits.sort(axis=1)
        for number in index:
            below = np.searchsorted(logits[number], values[:, :, number], side="right")
            rank[:, :, rows.start + number] = logits.shape[1] - below
        peak = logits[:, -1].copy()
        logits -= peak[:, None]
        np.exp(logits, out=logits)
        partition = np.log(logits.sum(axis=1, dtype=np.float64))
        surprisal[:, :, rows] = partition + (peak - values)

    inner = {layer: readout for layer, readout in readouts.items() if layer != last}
    if inner:
        stream(run, model, inner, keep_best, memory=memory, progress=progress)
    stream(run, model, {last: {"id": None}}, ask_final, memory=memory, progress=progress)
    return Comparison(tokens, rank, surprisal, sureness)


def confidence_gap(logits: NDArray[np.float32], best: NDArray[np.intp]) -> NDArray[np.float32]:
    """p₁ − p₂ of each row; the logits are used up."""
    index = np.arange(len(best))
    first = logits[index, best]
    if logits.shape[1] == 1:
        return np.ones_like(first)
    logits[index, best] = -np.inf
    second = np.exp(logits.max(axis=1) - first)
    logits -= first[:, None]
    np.exp(logits, out=logits)
    gap: NDArray[np.float32] = (1 - second) / (1 + logits.sum(axis=1, dtype=np.float64))
    return gap


def groups_of(run: Run, cluster: str | None) -> NDArray | None:
    """Each sample's value of the coordinate that marks dependent samples.

    Raises
    ------
    AnalysisError
        No samples, or no such coordinate.
    """
    if run.n_samples == 0:
        raise AnalysisError(f"{run.model}/{run.corpus} has no samples in view")
    if cluster is None:
        return None
    if cluster not in run.samples.coords and cluster not in run.samples:
        known = ", ".join(str(name) for name in run.samples.variables)
        raise AnalysisError(f"no sample coordinate {cluster!r} to cluster by; there are: {known}")
    values: NDArray = run.samples[cluster].values
    return values


def checked_ks(ks: Sequence[int], vocabulary: int) -> list[int]:
    """The k of Precision@k, sorted; AnalysisError if one is not in 1…vocabulary."""
    chosen = sorted({int(k) for k in ks})
    if not chosen or chosen[0] < 1 or chosen[-1] > vocabulary:
        raise AnalysisError(
            f"ks={tuple(ks)}; each k lies in 1…{vocabulary}, the size of the vocabulary"
        )
    return chosen


def layer_shares(
    hits: NDArray, groups: NDArray | None, layers: Sequence[int], last: int, level: float
) -> stats.Interval:
    """Shares of true values (readout, layer, …, sample), with intervals but at the last layer.

    There the prediction is the model's own by construction, whatever the samples.
    """
    shares = stats.proportion(hits, groups, level=level)
    if last in layers:
        for end in (shares.low, shares.high):
            end[:, list(layers).index(last)] = 1.0
    return shares


def add(
    dataset: xr.Dataset,
    name: str,
    dims: tuple[str, ...],
    interval: stats.Interval,
    units: str | None = None,
) -> None:
    """Put an estimate and the ends of its interval into a Dataset, as name, name_low, name_high."""
    units = units or ("nats" if name.startswith("surprisal") else "1")
    for suffix, values in zip(("", "_low", "_high"), interval, strict=True):
        dataset[name + suffix] = (dims, values, {"units": units})


def describe_samples(
    run: Run, groups: NDArray | None, cluster: str | None, level: float
) -> dict[str, Any]:
    """Attributes that say how many samples and clusters stand behind a result."""
    return {
        "samples": run.n_samples,
        "clusters": run.n_samples if groups is None else len(np.unique(groups)),
        "cluster": cluster or "sample",
        "level": level,
    }
