"""Sections of lenses that read tokens off hidden layers."""

from __future__ import annotations

from typing import Any

import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.report.page import Cell, Picture, Section, Table
from analysis.report.topic import Topic, interval, percent

Row = list[str | int | float | Cell]


def _tuned_findings(dataset: xr.Dataset) -> list[str]:
    k = int(dataset.k[0])
    at = dataset.sel(k=k)
    best = at.isel(layer=int(at.kl_gain.argmax("layer")))
    low, high = float(best.kl_gain_low), float(best.kl_gain_high)
    return [
        f"{dataset.attrs['title']}: the tuned lens is nearest to the model, against mat, at layer "
        f"{int(best.layer)}: {float(best.kl_gain):.2f} nats of KL less [{low:.2f}, {high:.2f}], "
        f"Precision@{k} {percent(best, 'precision_gain')}."
    ]


def _tuned_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        k = int(dataset.k[0])
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.tuned_lens(dataset, k)],
                f"{attributes['title']}: Precision@{k}, surprisal, and KL(p ‖ q) of the model's "
                "own distribution p and that of the readout q, by layer, on "
                f"{count(attributes['samples'], 'sample')} of documents not trained on. mat is the "
                "least-squares map to the last layer, at which the tuned lens starts; id decodes "
                f"the state itself. Bands are {attributes['level']:.0%} intervals that treat "
                f"samples of one {attributes['cluster']} as dependent "
                f"({count(attributes['clusters'], 'cluster')}).",
            )
        )
        rows: list[Row] = []
        for layer in dataset.layer.values.tolist():
            at = dataset.sel(layer=layer, k=k)
            row: Row = [layer]
            for name, factor, form in (("precision", 100, ".1f"), ("kl", 1, ".2f")):
                row += [
                    interval(at.sel(shortcut=shortcut), name, factor, form)
                    for shortcut in ("tuned", "mat", "id")
                ]
            rows.append([*row, interval(at, "kl_gain", 1, ".2f")])
        parts.append(
            Table(
                [
                    "layer",
                    *(f"P@{k} {name} %" for name in ("tuned", "mat", "id")),
                    *(f"KL {name}" for name in ("tuned", "mat", "id")),
                    "KL, mat − tuned",
                ],
                rows,
                f"{attributes['title']}: the numbers of the curves, in percent and nats.",
                folded="The curves as numbers",
            )
        )
    return Section(
        "What does training add to least squares?",
        parts,
        "The tuned lens: affine maps to the last layer trained to say what the model says (Belrose "
        "et al., arXiv 2303.08112), from the least-squares start.",
    )


def _future_findings(dataset: xr.Dataset) -> list[str]:
    k = int(dataset.k[0])
    parts = []
    for offset in dataset.offset.values.tolist():
        at = dataset.sel(offset=offset, k=k)
        best = at.isel(layer=int(at.precision.argmax("layer")))
        parts.append(
            f"{offset} ahead {percent(best, 'precision')} at layer {int(best.layer)} (bigram "
            f"{percent(best, 'bigram_precision')})"
        )
    return [
        f"{dataset.attrs['title']}: Precision@{k} of later predictions read off one state is "
        f"{', '.join(parts)}."
    ]


def _future_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        k = int(dataset.k[0])
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.future_lens(dataset, k)],
                f"{attributes['title']}: how often the token decoded from the state at token t, "
                f"through an affine map to the last layer some tokens ahead, is among the {k} most "
                "probable of the model's own prediction there, by layer, on documents not fitted "
                "on. Dashed: the token that follows token t most often at that distance; dotted: "
                f"the mean state decoded. Bands are {attributes['level']:.0%} intervals that treat "
                f"samples of one {attributes['cluster']} as dependent.",
            )
        )
        rows: list[Row] = []
        for offset in dataset.offset.values.tolist():
            for layer in dataset.layer.values.tolist():
                at = dataset.sel(offset=offset, layer=layer)
                row: Row = [offset, layer]
                row += [interval(at.sel(k=n), "precision", 100, ".1f") for n in dataset.k.values]
                row += [
                    interval(at.sel(k=k), "precision_gain", 100, ".1f"),
                    interval(at, "surprisal", 1, ".2f"),
                ]
                rows.append(row)
        parts.append(
            Table(
                [
                    "tokens ahead",
                    "layer",
                    *(f"P@{n} %" for n in dataset.k.values.tolist()),
                    f"P@{k} − bigram, points",
                    "surprisal",
                ],
                rows,
                f"{attributes['title']}: the numbers of the curves; surprisal in nats.",
                folded="The curves as numbers",
            )
        )
    return Section(
        "What does a state say about later tokens?",
        parts,
        "The linear future lens (Pal et al., arXiv 2311.04897).",
    )


FUTURE = Topic(
    "What does a state say about later tokens?",
    _future_section,
    _future_findings,
    "No future lens here: it needs the model and runs with all positions. Compute it with "
    "analysis.future_lens.curves(train, held_out, model).",
)
TUNED = Topic(
    "What does training add to least squares?",
    _tuned_section,
    _tuned_findings,
    "No tuned lens here: it needs the model. Train one with analysis.tuned_lens.train(run, model) "
    "and compare it with analysis.tuned_lens.curves(held_out, lenses, maps, model).",
)
