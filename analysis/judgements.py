"""What the answers of annotators say of the two methods, and of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from actstore.errors import AnalysisError
from analysis import results, stats
from analysis.agreement import cohen_kappa, krippendorff_alpha
from analysis.comparing import add

LEVEL = 0.95


def rates(judgements: xr.Dataset) -> xr.Dataset:
    """How plausible each method's tokens are, and whether the annotators agree.

    Parameters
    ----------
    judgements : xarray.Dataset
        What `analysis.annotation.read` returned.

    Returns
    -------
    xarray.Dataset
        ``rate`` (shortcut) and ``layer_rate`` (shortcut, layer), shares of judgements that say
        plausible; ``id_beats_mat``, the share of (sample, layer, annotator) with both judged
        where ``id`` is plausible and ``mat`` is not, and ``mat_beats_id``; with ``_low`` and
        ``_high``, 95% intervals in which all judgements of one sample are dependent. With
        several annotators ``alpha`` (Krippendorff's) and ``kappa`` (annotator, other; Cohen's).

    Raises
    ------
    AnalysisError
        Nothing was judged.
    """
    values = judgements.plausible.values
    shortcuts = list(dict.fromkeys(judgements.shortcut.values.tolist()))
    layers = sorted(set(judgements.layer.values.tolist()))
    of_shortcut, of_layer = judgements.shortcut.values, judgements.layer.values
    samples = np.broadcast_to(judgements["sample"].values, values.shape)
    if np.isnan(values).all():
        raise AnalysisError("nothing was judged in these sheets; fill the column 'plausible'")

    def rate(chosen: Any) -> stats.Interval:
        part, groups = values[:, chosen], samples[:, chosen]
        known = ~np.isnan(part)
        if not known.any():
            return stats.Interval(*(np.array(np.nan),) * 3)
        return stats.proportion(part[known], groups[known], level=LEVEL)

    dataset = xr.Dataset(coords={"shortcut": shortcuts, "layer": layers})
    add(dataset, "rate", ("shortcut",), _stack([rate(of_shortcut == s) for s in shortcuts]))
    by_layer = [
        _stack([rate((of_shortcut == s) & (of_layer == layer)) for layer in layers])
        for s in shortcuts
    ]
    add(dataset, "layer_rate", ("shortcut", "layer"), _stack(by_layer))
    pairs = _pairs(judgements)
    if pairs is not None:
        mat, identity, groups = pairs
        for name, one, other in (("id_beats_mat", identity, mat), ("mat_beats_id", mat, identity)):
            add(dataset, name, (), stats.proportion((one == 1) & (other == 0), groups, level=LEVEL))
    annotators = judgements.annotator.values.tolist()
    if len(annotators) > 1:
        dataset["alpha"] = ((), krippendorff_alpha(values))
        table = [[cohen_kappa(a, b) for b in values] for a in values]
        dataset["kappa"] = (("annotator", "other"), np.array(table))
        dataset = dataset.assign_coords(annotator=annotators, other=annotators)
    dataset.attrs.update(
        question=judgements.attrs["question"],
        judgements=int((~np.isnan(values)).sum()),
        samples=len(np.unique(samples)),
        annotators=len(annotators),
        level=LEVEL,
    )
    record = results.provenance(
        "analysis.annotation.rates",
        peek=results.read_provenance(judgements),
        annotators=annotators,
    )
    return results.label(dataset, "annotation", judgements.attrs["title"], record)


def _pairs(judgements: xr.Dataset) -> tuple[Any, Any, Any] | None:
    """Judgements of mat and of id of the same sample and layer by the same annotator."""
    values = judgements.plausible.values
    place = {
        (sample, layer, shortcut): number
        for number, (sample, layer, shortcut) in enumerate(
            zip(
                judgements["sample"].values.tolist(),
                judgements.layer.values.tolist(),
                judgements.shortcut.values.tolist(),
                strict=True,
            )
        )
    }
    both = [
        (number, place[sample, layer, "id"], sample)
        for (sample, layer, shortcut), number in place.items()
        if shortcut == "mat" and (sample, layer, "id") in place
    ]
    if not both:
        return None
    mats, ids, samples = (np.array(column) for column in zip(*both, strict=True))
    mat, identity = values[:, mats], values[:, ids]
    known = ~(np.isnan(mat) | np.isnan(identity))
    if not known.any():
        return None
    return mat[known], identity[known], np.broadcast_to(samples, mat.shape)[known]


def _stack(intervals: list[stats.Interval]) -> stats.Interval:
    return stats.Interval(*(np.stack(part) for part in zip(*intervals, strict=True)))
