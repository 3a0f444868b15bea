"""What a state already says about tokens further on: the linear future lens.

"Future Lens: Anticipating Subsequent Tokens from a Single Hidden State" (Pal et al. 2023, arXiv
2311.04897, §2.2): a linear map from h_l at token t to h_L at token t + k, decoded by the model's
own head.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError, SiteError
from actstore.grams import align
from analysis import results, stats
from analysis.comparing import add, checked_ks, groups_of
from analysis.decoding import MEMORY, SITE, require_finite, require_model
from analysis.divergence import log_softmax
from analysis.transport import fit_operators

if TYPE_CHECKING:
    from actstore.fitting import LinearMap
    from actstore.models import LanguageModel
    from actstore.store import Run

LEVEL = 0.95
BASELINES = ("bigram", "mean")
TOGETHER = 2  # layers whose maps share a Gram: the fewest products for each map


def curves(
    train: Run,
    held_out: Run,
    model: LanguageModel,
    *,
    offsets: Sequence[int] = (1, 2, 3),
    ks: Sequence[int] = (1, 5, 10),
    ridge: float | Sequence[float] = 0.0,
    cluster: str | None = "document",
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Precision@k of the prediction that the model makes k tokens later, read off now.

    For each layer l in view and each offset, the affine map h_l(t) → h_L(t + offset) is fitted on
    `train`. On `held_out` its result is decoded, and the best token compared with the model's own
    distribution p at t + offset, that of token t + offset + 1: **Precision@k** = mean[it is in the
    top k of p], **surprisal** = mean[−ln p(it)], in nats, with ties as in
    `analysis.prediction.curves`. The baselines do without the state: ``bigram``, the token that
    follows token t most often at that distance in the text of `train` (the lowest id of several,
    and for tokens not seen there the most frequent of all); ``mean``, the mean of h_L decoded.

    Parameters
    ----------
    train, held_out : Run
        Samples of other documents with all their positions (``extract(..., positions="all")``),
        the last layer L in view.
    model : LanguageModel
        The model that the runs were extracted from.
    offsets : sequence of int
        Tokens ahead, 1 or more.
    ks : sequence of int
    ridge : float or sequence of float
        α; of several the best by cross-validation, see `actstore.fit`.
    cluster : str or None
        Sample coordinate whose values mark dependent samples; None: all are independent.
    memory : int
        Bytes of logits held at a time.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``precision`` (offset, layer, k) and ``surprisal`` (offset, layer); ``bigram_precision``
        and ``mean_precision`` (offset, k), ``bigram_surprisal`` and ``mean_surprisal`` (offset);
        ``precision_gain`` (offset, layer, k), paired, over the bigram. Each with ``_low`` and
        ``_high``, ends of cluster-robust 95% intervals. ``samples`` (offset).

    Raises
    ------
    AnalysisError, SiteError, GramError
        An offset below 1, no last layer, the model is another or has no head, or no two samples
        of a document lie so far apart.
    NonFiniteError
        A logit is NaN or infinite.
    """
    chosen = list(dict.fromkeys(int(k) for k in offsets))
    if not chosen or min(chosen) < 1:
        raise AnalysisError(f"offsets={tuple(offsets)}: numbers of tokens ahead, 1 or more")
    if not model.has_head:
        raise AnalysisError(f"{model.name} has no language-model head to decode with")
    chosen_ks = checked_ks(ks, model.vocab_size)
    last = model.n_blocks
    for run in (train, held_out):
        if last not in run.sites.get(SITE, []):
            raise SiteError(
                f"the future lens needs layer {last} of {SITE!r}, the last of {model.name}, in "
                f"{run.model}/{run.corpus}"
            )
        require_model(run, model)
    layers = [n for n in held_out.sites[SITE] if n in train.sites[SITE]]
    dataset = xr.Dataset(coords={"offset": chosen, "layer": layers, "k": chosen_ks})
    found: dict[str, list[stats.Interval]] = defaultdict(list)
    counts = []
    for offset in chosen:
        ranks, surprisals, groups = _compare(
            train, held_out, model, offset, layers, ridge, cluster, memory, progress
        )
        counts.append(ranks.shape[1])
        hits = np.stack([ranks < k for k in chosen_ks], axis=1)
        shares = stats.proportion(hits, groups, level=LEVEL)
        means = stats.mean(surprisals, groups, level=LEVEL)
        for row, name in enumerate(BASELINES):
            found[f"{name}_precision"].append(_take(shares, row))
            found[f"{name}_surprisal"].append(_take(means, row))
        own = slice(len(BASELINES), None)
        found["precision"].append(_take(shares, own))
        found["surprisal"].append(_take(means, own))
        gain = hits[own].astype(np.int8) - hits[:1]
        found["precision_gain"].append(stats.mean(gain, groups, level=LEVEL))
    for name, entries in found.items():
        stacked = stats.Interval(*(np.stack(ends) for ends in zip(*entries, strict=True)))
        dims = ("offset",) if name.startswith(BASELINES) else ("offset", "layer")
        if "precision" in name:
            dims = (*dims, "k")
        add(dataset, name, dims, stacked, "nats" if "surprisal" in name else "1")
    dataset["samples"] = ("offset", counts)
    dataset.attrs.update(level=LEVEL, cluster=cluster or "sample")
    record = results.provenance(
        "analysis.future_lens.curves",
        runs={"train": train, "evaluation": held_out},
        model=model,
        offsets=chosen,
        ks=chosen_ks,
        ridge=ridge,
        cluster=cluster,
    )
    return results.label(dataset, "future_lens", f"{held_out.model} on {held_out.corpus}", record)


def _compare(
    train: Run,
    held_out: Run,
    model: LanguageModel,
    offset: int,
    layers: Sequence[int],
    ridge: float | Sequence[float],
    cluster: str | None,
    memory: int,
    progress: bool | None,
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray | None]:
    """Ranks and surprisals (baselines and layers, samples), and the samples' clusters."""
    last = model.n_blocks
    maps = _maps_to_last(train, offset, layers, last, ridge, progress)
    centre = _mean_of(train, last)
    rows = align(held_out.sel(site=SITE), held_out.sel(site=SITE), shift=offset)
    here, there = (f"{name}:{SITE}" for name in rows.names)
    guesses = bigrams(train, rows.runs[0].coordinate("token_id"), offset + 1)
    constant = int(model.decode(centre[None].astype(np.float32)).argmax())
    shape = (len(BASELINES) + len(layers), rows.n_samples)
    ranks, surprisals = np.empty(shape, np.int32), np.empty(shape, np.float32)
    blocks = rows.row_blocks(max(memory // (4 * 3 * model.vocab_size), 1))
    bar = tqdm(
        blocks,
        desc=f"future lens, {offset} ahead",
        unit="block",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    for block in bar:
        final = model.decode(np.asarray(rows.read(there, last, block), np.float32))
        require_finite(final, "the model itself", last)
        log_p = log_softmax(final)
        index = np.arange(len(final))
        tokens = [guesses[block.out], np.full(len(final), constant)]
        for layer in layers:
            states = np.asarray(rows.read(here, layer, block), np.float32)
            logits = model.decode(maps[layer](states))
            require_finite(logits, "the map", layer)
            tokens.append(logits.argmax(axis=1))
        for row, best in enumerate(tokens):
            ranks[row, block.out] = (final > final[index, best][:, None]).sum(axis=1)
            surprisals[row, block.out] = -log_p[index, best]
    return ranks, surprisals, groups_of(rows.runs[0], cluster)


def _maps_to_last(
    train: Run,
    offset: int,
    layers: Sequence[int],
    last: int,
    ridge: float | Sequence[float],
    progress: bool | None,
) -> dict[int, LinearMap]:
    """The map of each layer, from Grams of a few layers: one of all, with folds, can be larger
    than the machine's memory, and would hold products between layers that nobody asks for."""
    bar = tqdm(
        [layers[first : first + TOGETHER] for first in range(0, len(layers), TOGETHER)],
        desc=f"maps, {offset} ahead",
        unit="Gram",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    found: dict[int, LinearMap] = {}
    for group in bar:
        pairs = [(layer, last) for layer in group]
        maps = fit_operators(train, offset, pairs=pairs, ridge=ridge, cache=False, progress=False)
        found.update((layer, maps[key]) for layer, key in zip(group, maps, strict=True))
    return found


def bigrams(train: Run, tokens: NDArray, distance: int) -> NDArray[np.int64]:
    """For each token the one that follows it most often at a distance in a run's text.

    Parameters
    ----------
    train : Run
        With ``document``, ``position`` and ``token_id`` of its samples.
    tokens : (n,) int
    distance : int
        1: the next token.

    Returns
    -------
    (n,) int64
    """
    document, position = train.coordinate("document"), train.coordinate("position")
    known = train.coordinate("token_id").tolist()
    places = dict(zip(zip(document.tolist(), position.tolist(), strict=True), known, strict=True))
    following: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for (name, place), token in places.items():
        after = places.get((name, place + distance))
        if after is not None:
            following[token][after] += 1
    overall = _most_frequent(Counter(known))
    best = {token: _most_frequent(counts) for token, counts in following.items()}
    return np.array([best.get(token, overall) for token in np.asarray(tokens).tolist()], np.int64)


def _most_frequent(counts: Counter[int]) -> int:
    return min(counts, key=lambda token: (-counts[token], token))


def _mean_of(run: Run, layer: int) -> NDArray[np.float64]:
    total = np.zeros(run.width(SITE))
    for block in run.row_blocks(4096):
        total += np.asarray(run.read(SITE, layer, block), np.float64).sum(axis=0)
    return total / run.n_samples


def _take(interval: stats.Interval, rows: Any) -> stats.Interval:
    return stats.Interval(*(ends[rows] for ends in interval))
