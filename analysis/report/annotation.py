"""Section of what annotators said."""

from __future__ import annotations

from typing import Any

import xarray as xr

from analysis import plots
from analysis.report.page import Picture, Section, Table
from analysis.report.topic import Topic, interval, percent


def _findings(dataset: xr.Dataset) -> list[str]:
    parts = [
        f"{name} {percent(dataset.sel(shortcut=name), 'rate')}"
        for name in dataset.shortcut.values.tolist()
    ]
    beats = (
        f"; id is plausible where mat is not in {percent(dataset, 'id_beats_mat')}"
        if "id_beats_mat" in dataset
        else ""
    )
    return [
        f"{dataset.attrs['title']}: judged plausible, {', '.join(parts)} of "
        f"{dataset.attrs['judgements']:,} judgements{beats}."
    ]


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.plausibility(dataset)],
                f"{attributes['title']}: “{attributes['question']}” Share of yes by layer, of "
                f"{attributes['judgements']:,} blinded judgements of {attributes['samples']} "
                f"samples by {attributes['annotators']} annotators; bands are "
                f"{attributes['level']:.0%} intervals that treat judgements of one sample as "
                "dependent.",
            )
        )
        rows: list[list[Any]] = [
            [f"{name}: plausible, %", interval(dataset.sel(shortcut=name), "rate", 100, ".1f")]
            for name in dataset.shortcut.values.tolist()
        ]
        for name in ("id_beats_mat", "mat_beats_id"):
            if name in dataset:
                text = name.replace("_", " ") + ", %"
                rows.append([text, interval(dataset, name, 100, ".1f")])
        if "alpha" in dataset:
            rows.append(["Krippendorff's α", float(dataset.alpha)])
            names = dataset.annotator.values.tolist()
            rows += [
                [f"Cohen's κ, {a} and {b}", float(dataset.kappa.sel(annotator=a, other=b))]
                for i, a in enumerate(names)
                for b in names[i + 1 :]
            ]
        parts.append(Table(["measure", "value"], rows, f"{attributes['title']}: the answers."))
    return Section(
        "Are the decoded tokens plausible?",
        parts,
        "People judged the tokens decoded at every layer without knowing layer or method (“Jump "
        "to Conclusions”, arXiv 2303.09435, §4).",
    )


ANNOTATION = Topic(
    "Are the decoded tokens plausible?",
    _section,
    _findings,
    "No annotation here: people have to judge a sheet first. Write one with "
    "analysis.annotation.export(peek, folder), read it back with read(), and pass rates().",
)
