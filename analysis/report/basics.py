"""Sections of r², prediction curves and decoded tokens."""

from __future__ import annotations

import xarray as xr

from actstore.wording import count
from analysis import plots, results
from analysis.report.page import Cell, Peek, Picture, Section, Table
from analysis.report.topic import Topic, interval, percent


def _r2_findings(dataset: xr.Dataset) -> list[str]:
    means = dataset.r2.mean(("source", "target"))
    medians = dataset.r2.median(("source", "target"))
    parts = [
        f"{name} {float(means.sel(shortcut=name)):.3f} "
        f"(median {float(medians.sel(shortcut=name)):.3f})"
        for name in dataset.shortcut.values.tolist()
    ]
    return [f"{dataset.attrs['title']}: mean r² over all pairs, {', '.join(parts)}."]


def _prediction_findings(dataset: xr.Dataset) -> list[str]:
    k = int(dataset.k[0])
    at_k, name = dataset.sel(k=k), dataset.attrs["title"]
    middle = int(dataset.layer[dataset.sizes["layer"] // 2])
    parts = [
        f"{shortcut} {percent(at_k.sel(layer=middle, shortcut=shortcut), 'precision')}"
        for shortcut in dataset.shortcut.values.tolist()
    ]
    sentences = [f"{name}: Precision@{k} at layer {middle} is {', '.join(parts)}."]
    if "precision_gain" in dataset:
        best = at_k.isel(layer=int(at_k.precision_gain.argmax("layer")))
        sentences.append(
            f"{name}: mat beats id most at layer {int(best.layer)}, by "
            f"{percent(best, 'precision_gain')} in Precision@{k}; it is ahead at "
            f"{int((at_k.precision_gain_low > 0).sum())} and behind at "
            f"{int((at_k.precision_gain_high < 0).sum())} of "
            f"{count(dataset.sizes['layer'], 'layer')}."
        )
    return sentences


def _peek_findings(dataset: xr.Dataset) -> list[str]:
    means = dataset.settles.mean("sample")
    parts = [
        f"layer {float(means.sel(shortcut=name)):.1f} by {name}"
        for name in dataset.shortcut.values.tolist()
    ]
    return [
        f"{dataset.attrs['title']}: over the {count(dataset.sizes['sample'], 'sample')} shown, the "
        f"model's answer is in place for good from {' and '.join(parts)} on average, of "
        f"{count(int(dataset.layer[-1]), 'layer')}."
    ]


def _r2_section(found: list[xr.Dataset]) -> Section:
    parts = [
        Picture(
            [plots.r2_heat_maps(dataset, [name]) for name in dataset.shortcut.values.tolist()],
            f"{dataset.attrs['title']}: r² of predicting the layer of each column from the layer "
            f"of each row, on {dataset.attrs.get('samples', 0):,} evaluation samples. Each "
            "coordinate's r² = 1 − SSE/SST is averaged uniformly; all of it follows from the "
            "Gram matrices of the two layers. "
            f"mat is the map {results.fitted_on(dataset)}, id takes the source state as it is. "
            "Colours are clipped to [0, 1]; the data are not.",
        )
        for dataset in found
    ]
    return Section(
        "How linear are the layers?",
        parts,
        "How much of one layer of the residual stream a linear map recovers from an earlier one "
        "(“Jump to Conclusions”, arXiv 2303.09435, §2).",
    )


def _prediction_section(found: list[xr.Dataset]) -> Section:
    parts: list[Picture | Table | Peek] = []
    for dataset in found:
        parts.append(_prediction_picture(dataset))
        parts.append(_prediction_table(dataset))
    if len(found) > 1:
        together = {dataset.attrs["title"]: dataset for dataset in found}
        k = int(found[0].k[0])
        parts.append(
            Picture(
                [plots.precision(together, ks=[k]), plots.surprisal(together)],
                f"All evaluations together over relative depth, layer / number of blocks: "
                f"Precision@{k} and surprisal as above.",
            )
        )
    return Section(
        "What do hidden layers already predict?",
        parts,
        "The state of each layer is decoded by the model's own final norm and head, through the "
        "fitted map to the last layer (mat) or as it is (id), and its best token is compared with "
        "the model's own distribution (“Jump to Conclusions”, arXiv 2303.09435, §3).",
    )


def _prediction_picture(dataset: xr.Dataset) -> Picture:
    figures = [plots.precision(dataset, ks=[k]) for k in dataset.k.values.tolist()]
    attributes = dataset.attrs
    return Picture(
        [*figures, plots.surprisal(dataset)],
        f"{attributes['title']}: Precision@k, the share of "
        f"{count(attributes['samples'], 'sample')} whose "
        "decoded token is among the model's own k most probable ones, and surprisal, the mean of "
        "−ln of the probability that the model gives that token, by layer. mat decodes through the "
        f"map to the last layer, {results.fitted_on(dataset)}; id decodes the state itself. Bands "
        f"are {attributes['level']:.0%} intervals that treat samples of one "
        f"{attributes['cluster']} as dependent ({count(attributes['clusters'], 'cluster')}): "
        "Wilson's at the effective sample size for shares, Student's t for means.",
    )


def _prediction_table(dataset: xr.Dataset) -> Table:
    shortcuts, ks = dataset.shortcut.values.tolist(), dataset.k.values.tolist()
    header = ["layer", *(f"P@{k} {name} %" for k in ks for name in shortcuts)]
    header += [f"surprisal {name}" for name in shortcuts]
    rows: list[list[str | int | float | Cell]] = []
    for layer in dataset.layer.values.tolist():
        at = dataset.sel(layer=layer)
        row: list[str | int | float | Cell] = [layer]
        row += [
            interval(at.sel(k=k, shortcut=name), "precision", 100, ".1f")
            for k in ks
            for name in shortcuts
        ]
        row += [interval(at.sel(shortcut=name), "surprisal", 1, ".2f") for name in shortcuts]
        rows.append(row)
    return Table(
        header,
        rows,
        f"{dataset.attrs['title']}: the numbers of the curves, with the ends of their "
        f"{dataset.attrs['level']:.0%} intervals; surprisal in nats.",
        folded="The curves as numbers",
    )


def _peek_section(found: list[xr.Dataset]) -> Section:
    parts = [
        Peek(
            dataset,
            f"{dataset.attrs['title']}: the {dataset.sizes['rank']} most probable tokens decoded "
            "at each layer, with their probability in percent (and as shading). A green line "
            "marks the model's answer where it is the best token, a green edge the layers from "
            "which on it stays it.",
        )
        for dataset in found
    ]
    return Section("Tokens decoded at every layer", parts)


R2 = Topic(
    "How linear are the layers?",
    _r2_section,
    _r2_findings,
    "No r² here: it needs maps and a Gram to evaluate them on. Compute it with "
    "analysis.r2.heat_maps(maps, run).",
)
PREDICTION = Topic(
    "What do hidden layers already predict?",
    _prediction_section,
    _prediction_findings,
    "No prediction curves here: they need the model itself, beside the store, and its last "
    "layer in the run. Compute them with analysis.prediction.curves(run, maps, model).",
)
PEEK = Topic(
    "Tokens decoded at every layer",
    _peek_section,
    _peek_findings,
    "No decoded tokens here: they need the model and its tokenizer. Compute them with "
    "analysis.prediction.peek(run, maps, model).",
)
