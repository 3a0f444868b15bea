"""Sections of linear probes."""

from __future__ import annotations

from typing import Any

import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.report.page import Picture, Section, Table
from analysis.report.topic import Topic, interval, percent


def _findings(dataset: xr.Dataset) -> list[str]:
    best = dataset.isel(layer=int(dataset.accuracy.argmax("layer")))
    return [
        f"{dataset.attrs['title']}: {count(dataset.sizes['class'], 'class')} are told apart best "
        f"at layer {int(best.layer)} of {int(dataset.layer[-1])}, {percent(best, 'accuracy')}; "
        f"the commonest class gives {percent(dataset, 'majority')}, shuffled labels "
        f"{percent(best, 'control_accuracy')}."
    ]


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.probing(dataset), plots.probing(dataset, measure="macro_f1")],
                f"{attributes['title']}: {_method(attributes['method'])} on "
                f"{count(attributes['samples'], 'sample')} of "
                f"{count(attributes['clusters'], attributes['cluster'] + ' cluster')}, "
                f"cross-validated over {attributes['folds']} "
                "folds of whole clusters. Shuffled labels: exchanged between "
                f"{attributes['control']}. Bands are {attributes['level']:.0%} intervals; they "
                f"take the classifiers as given.{_untrained(attributes)}",
            )
        )
        names = ("accuracy", "macro_f1", "gain", "selectivity")
        rows: list[list[Any]] = [
            [int(at.layer), *(interval(at, name, 100, ".1f") for name in names)]
            for layer in dataset.layer.values
            for at in [dataset.sel(layer=layer)]
        ]
        header = ["layer", "accuracy %", "macro F1 %", "over majority", "over shuffled"]
        parts.append(
            Table(
                header, rows, f"{attributes['title']}: the probes as numbers.", folded="As numbers"
            )
        )
    return Section(
        "What do linear probes read off the layers?",
        parts,
        "A linear classifier on the stored activations of each layer (“Your Transformer is "
        "Secretly Linear”, arXiv 2405.12250, §4), beside the commonest class and a control with "
        "shuffled labels.",
    )


def _untrained(attributes: dict[str, Any]) -> str:
    names = list(attributes.get("untrained", ()))
    if not names:
        return ""
    told = "is a class" if len(names) == 1 else "are classes"
    return f" {', '.join(names)} {told} of one fold only, never trained on where judged."


def _method(method: str) -> str:
    return {
        "ridge": "ridge classifiers",
        "least_squares": "least-squares classifiers",
        "logistic": "logistic regression",
    }[method]


PROBING = Topic(
    "What do linear probes read off the layers?",
    _section,
    _findings,
    "No probes here: they need a label for each sample. Compute them with "
    "analysis.probing.accuracy(run, labels).",
)
