"""How well hidden layers already predict what the model will say.

"Jump to Conclusions" (arXiv 2303.09435) §3: decode the state of layer l through a map to the last
layer (``mat``) or as it is (``id``), and compare its best token with the model's own distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from actstore.wording import count
from analysis import results, stats
from analysis.comparing import add, checked_ks, compare, describe_samples, groups_of, layer_shares
from analysis.decoding import MEMORY, SHORTCUTS, readouts_to_last
from analysis.peeking import peek, peek_table

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel
    from actstore.store import Run

__all__ = ["curves", "curves_table", "peek", "peek_table"]

LEVEL = 0.95


def curves(
    run: Run,
    maps: MapSet | None,
    model: LanguageModel,
    *,
    ks: Sequence[int] = (1, 5, 10),
    shortcuts: Sequence[str] = SHORTCUTS,
    cluster: str | None = "document",
    memory: int = MEMORY,
    per_sample: bool = False,
    progress: bool | None = None,
) -> xr.Dataset:
    """Precision@k and surprisal of the predictions read off every layer.

    With z = decode(M h_l), M the map l → L (``mat``) or the identity (``id``), t = argmax z (the
    lowest id where several are best), and p the softmax of the model's own final logits
    decode(h_L): **Precision@k** = mean[t is in the top k of p], **surprisal** = mean[−ln p(t)]
    ("Jump to Conclusions" §3). It is agreement with the model, not with the text. The rank of t
    in p is the number of tokens with a strictly greater final logit; t is in the top k if its
    rank is below k, so tokens that tie for place k all count. At layer L the prediction is the
    model's own: Precision is 1, with no interval. For a masked model ``decode`` is its MLM head,
    and all else is the same.

    Parameters
    ----------
    run : Run
        Evaluation samples; their layers of the residual stream must include the last, L.
    maps : MapSet, or None
        Maps (l, L) for ``mat``, fitted on other samples; not needed for ``id`` alone.
    model : LanguageModel
        The model that the run was extracted from.
    ks : sequence of int
        The k of Precision@k.
    shortcuts : sequence of "mat", "id"
        How states are brought to the last layer.
    cluster : str or None
        Sample coordinate whose values mark dependent samples (`analysis.stats`); None: all
        samples are independent.
    memory : int
        Bytes of logits held at a time; the number of samples does not matter to it.
    per_sample : bool
        Also return each sample's ``sample_token_id``, ``sample_rank`` and ``sample_surprisal``
        (shortcut, layer, sample), for comparisons of one's own.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``precision`` (shortcut, layer, k) and ``surprisal`` (shortcut, layer; nats), each with
        ``_low`` and ``_high``, the ends of cluster-robust 95% intervals; where both shortcuts are
        asked for also the paired differences ``precision_gain`` = mat − id (layer, k) and
        ``surprisal_gain`` = id − mat (layer). Coordinate ``depth`` = l/L.

    Raises
    ------
    AnalysisError, SiteError
        A layer, map, shortcut or coordinate is missing, or a k is not positive.
    NonFiniteError
        A state or a logit is NaN or infinite.
    """
    chosen_ks = checked_ks(ks, model.vocab_size)
    groups = groups_of(run, cluster)
    readouts = readouts_to_last(run, maps, model, shortcuts)
    layers, last = list(readouts), model.n_blocks
    found = compare(run, model, readouts, shortcuts, memory=memory, progress=progress)
    rank, surprisal = found.rank, found.surprisal

    coordinates = {
        "shortcut": list(shortcuts),
        "layer": layers,
        "k": chosen_ks,
        "depth": ("layer", np.array(layers) / last),
    }
    dataset = xr.Dataset(coords=coordinates)
    hits = np.stack([rank < k for k in chosen_ks], axis=2)
    shares = layer_shares(hits, groups, layers, last, LEVEL)
    add(dataset, "precision", ("shortcut", "layer", "k"), shares)
    add(dataset, "surprisal", ("shortcut", "layer"), stats.mean(surprisal, groups, level=LEVEL))
    if {"mat", "id"} <= set(shortcuts):
        mat, identity = list(shortcuts).index("mat"), list(shortcuts).index("id")
        gain = hits[mat].astype(np.int8) - hits[identity]
        add(dataset, "precision_gain", ("layer", "k"), stats.mean(gain, groups, level=LEVEL))
        gain = surprisal[identity] - surprisal[mat]
        add(dataset, "surprisal_gain", ("layer",), stats.mean(gain, groups, level=LEVEL))
    if per_sample:
        dims = ("shortcut", "layer", "sample")
        dataset["sample_token_id"] = (dims, found.tokens)
        dataset["sample_rank"] = (dims, rank)
        dataset["sample_surprisal"] = (dims, surprisal, {"units": "nats"})
        dataset = dataset.assign_coords(run.samples.coords)
    dataset.depth.attrs["long_name"] = "layer / number of blocks"
    dataset.attrs.update(describe_samples(run, groups, cluster, LEVEL))
    record = results.provenance(
        "analysis.prediction.curves",
        runs={"evaluation": run},
        model=model,
        maps=maps if "mat" in shortcuts else None,
        ks=chosen_ks,
        shortcuts=list(shortcuts),
        cluster=cluster,
    )
    return results.label(dataset, "prediction", f"{run.model} on {run.corpus}", record)


def curves_table(dataset: xr.Dataset) -> str:
    """The curves as a table for the terminal: percentages and nats.

    Intervals are shown for the first k and the surprisal; the Dataset has the others.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `curves` returned.
    """
    first, *others = dataset.k.values.tolist()
    header = ["layer"]
    for shortcut in dataset.shortcut.values.tolist():
        header += [f"{shortcut}: P@{first} %", *(f"P@{k} %" for k in others), "surprisal"]
    rows = []
    for layer in dataset.layer.values.tolist():
        row = [str(layer)]
        for shortcut in dataset.shortcut.values.tolist():
            at = dataset.sel(layer=layer, shortcut=shortcut)
            row.append(_span(at.sel(k=first), "precision", 100, ".1f"))
            row += [f"{100 * float(at.precision.sel(k=k)):.1f}" for k in others]
            row.append(_span(at, "surprisal", 1, ".2f"))
        rows.append(row)
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in [header, *rows]
    ]
    title = (
        f"{dataset.attrs['title']}: {count(dataset.attrs['samples'], 'sample')}, "
        f"{count(dataset.attrs['clusters'], dataset.attrs['cluster'] + ' cluster')}"
    )
    return "\n".join([title, *lines])


def _span(dataset: xr.Dataset, name: str, factor: float, form: str) -> str:
    value, low, high = (
        format(factor * float(dataset[name + suffix]), form) for suffix in ("", "_low", "_high")
    )
    return f"{value} [{low}, {high}]"
