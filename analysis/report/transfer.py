"""Sections of maps fitted on one corpus and used on another."""

from __future__ import annotations

from typing import Any

import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.report.page import Picture, Section, Table
from analysis.report.topic import Topic, interval, percent


def _findings(dataset: xr.Dataset) -> list[str]:
    at = dataset.isel(k=0)
    return [
        f"{dataset.attrs['title']}: on {corpus}, maps fitted on {fitted} lose "
        f"{percent(at.sel(fitted_on=fitted, evaluated_on=corpus), 'cost')} of mean "
        f"Precision@{int(at.k)} to those fitted on {corpus}."
        for corpus in dataset.evaluated_on.values.tolist()
        for fitted in dataset.fitted_on.values.tolist()
        if fitted not in ("id", corpus)
        and bool(at.cost.sel(fitted_on=fitted, evaluated_on=corpus).notnull())
    ]


def _r2_findings(dataset: xr.Dataset) -> list[str]:
    sentences = []
    for corpus in dataset.evaluated_on.values.tolist():
        at = dataset.sel(evaluated_on=corpus)
        parts = [
            f"{name} {float(at.mean_r2.sel(fitted_on=name)):.3f}"
            for name in dataset.fitted_on.values.tolist()
        ]
        sentences.append(
            f"{dataset.attrs['title']}: mean r² to the last layer on {corpus}, fitted on "
            f"{', '.join(parts)}."
        )
    return sentences


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        k = int(dataset.k[0])
        at = dataset.sel(k=k)
        parts.append(
            Picture(
                [plots.transfer(dataset, k=k)],
                f"{dataset.attrs['title']}: Precision@{k} by layer of maps to the last layer, by "
                "the corpus they were fitted on. " + _who(dataset),
            )
        )
        rows = [
            [
                fitted,
                corpus,
                interval(
                    one := at.sel(fitted_on=fitted, evaluated_on=corpus),
                    "mean_precision",
                    100,
                    ".1f",
                ),
                interval(one, "mean_surprisal", 1, ".2f"),
                interval(one, "cost", 100, ".1f"),
            ]
            for fitted in dataset.fitted_on.values.tolist()
            for corpus in dataset.evaluated_on.values.tolist()
        ]
        parts.append(
            Table(
                ["fitted on", "evaluated on", f"mean P@{k} %", "mean surprisal", "cost, points"],
                rows,
                f"{dataset.attrs['title']}: averages over the layers below the last. The cost is "
                "what is lost to the maps of the evaluation's own corpus, paired by sample.",
            )
        )
    return Section(
        "Do maps of one corpus serve another?",
        parts,
        "Fit on one corpus, evaluate on another, all combinations (“Jump to Conclusions”, arXiv "
        "2303.09435, §7).",
    )


def _r2_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        parts.append(
            Picture(
                [plots.transfer(dataset)],
                f"{dataset.attrs['title']}: r² of the maps by the corpus they were fitted on; id "
                "takes the state as it is. Cut off at 0 in the picture. " + _who(dataset),
            )
        )
        rows = [
            [
                fitted,
                corpus,
                interval(
                    one := dataset.sel(fitted_on=fitted, evaluated_on=corpus), "mean_r2", 1, ".3f"
                ),
                interval(one, "r2_cost", 1, ".3f"),
            ]
            for fitted in dataset.fitted_on.values.tolist()
            for corpus in dataset.evaluated_on.values.tolist()
        ]
        parts.append(
            Table(
                ["fitted on", "evaluated on", "mean r²", "cost"],
                rows,
                f"{dataset.attrs['title']}: averages over {count(dataset.sizes['pair'], 'pair')} "
                f"of layers, with percentile intervals of {dataset.attrs['resamples']:,} "
                "bootstrap resamples of whole clusters; the cost is of the same resamples.",
            )
        )
    return Section("Transfer between corpora: r²", parts)


def _combinations(dataset: xr.Dataset) -> list[tuple[str, str]]:
    return [
        (fitted, corpus)
        for fitted in dataset.fitted_on.values.tolist()
        for corpus in dataset.evaluated_on.values.tolist()
    ]


def _who(dataset: xr.Dataset) -> str:
    names = dataset.evaluated_on.values.tolist()
    counts = list(dataset.attrs["samples"])
    return (
        "Evaluated on "
        + ", ".join(
            f"{count(n, 'sample')} of {name}" for name, n in zip(names, counts, strict=True)
        )
        + f"; bands are {dataset.attrs['level']:.0%} intervals that treat samples of one "
        f"{dataset.attrs['cluster']} as dependent."
    )


TRANSFER = Topic(
    "Do maps of one corpus serve another?",
    _section,
    _findings,
    "No transfer here: it needs two corpora or more, and the model. Compute it with "
    "analysis.transfer.predictions(maps, runs, model).",
)
TRANSFER_R2 = Topic(
    "Transfer between corpora: r²",
    _r2_section,
    _r2_findings,
    "No transfer of r² here: it needs two corpora or more. Compute it with "
    "analysis.transfer.r2(maps, runs).",
)
