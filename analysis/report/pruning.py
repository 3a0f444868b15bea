"""Sections of models with fewer blocks, and of perplexity by itself."""

from __future__ import annotations

from typing import Any

import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.plots.pruning import CRITERIA, WAYS
from analysis.report.page import Cell, Picture, Section, Table
from analysis.report.topic import Topic, interval


def _findings(dataset: xr.Dataset) -> list[str]:
    sentences = []
    base = _whole(dataset)
    for variant in dataset.variant.values.tolist():
        at = dataset.sel(variant=variant)
        parts = []
        for taken in at["count"].values.tolist():
            one = at.sel(count=taken)
            if taken:
                parts.append(
                    f"{taken}: × {float(one.ratio):.2f} "
                    f"[{float(one.ratio_low):.2f}, {float(one.ratio_high):.2f}]"
                )
        start = f"from {base}, " if base else ""
        sentences.append(
            f"{dataset.attrs['title']}, blocks {WAYS.get(variant, variant)}: perplexity "
            f"{start}by how many of {dataset.attrs['blocks']}, {'; '.join(parts)}."
        )
    return sentences


def _whole(dataset: xr.Dataset) -> str:
    if 0 not in dataset["count"].values:
        return ""
    return f"{float(dataset.perplexity.sel(count=0).isel(variant=0)):.2f}"


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        attributes = dataset.attrs
        how = "scored anew after each removal" if attributes["rescored"] else "scored once"
        by = CRITERIA.get(attributes["by"], attributes["by"])
        parts.append(
            Picture(
                [plots.pruning(dataset)],
                f"{attributes['title']}: perplexity of {count(attributes['tokens'], 'token')} of "
                f"{count(attributes['documents'], 'document')} held out, windows of "
                f"{attributes['context']} tokens, {attributes['stride']} apart; bands are "
                f"{attributes['level']:.0%} intervals over "
                f"{count(attributes['clusters'], 'document')}. Blocks in order of {by}, {how}; "
                f"maps fitted on {count(attributes['fitted_on'], 'token')}, maps distilled on "
                f"{attributes['distilled_on'][0]:,}, all parameters on "
                f"{attributes['distilled_on'][1]:,}.",
            )
        )
        rows = [
            [
                WAYS.get(variant, variant),
                taken,
                interval(one := dataset.sel(variant=variant, count=taken), "perplexity", 1, ".2f"),
                interval(one, "ratio", 1, ".3f"),
                int(one.parameters),
                "yes" if bool(one.generates) else "no",
                str(one.continuation.item()),
            ]
            for variant in dataset.variant.values.tolist()
            for taken in dataset["count"].values.tolist()
        ]
        order = ", ".join(map(str, dataset.order.values.tolist()))
        parts.append(
            Table(
                [
                    "blocks",
                    "how many",
                    "perplexity",
                    "× the whole model's",
                    "parameters",
                    "cache agrees",
                    "goes on",
                ],
                rows,
                f"{attributes['title']}: blocks in the order {order}. The ratio is paired by "
                "document. Cache agrees: greedy generation gives the same tokens with the "
                "key/value cache and without; goes on: those tokens, after the first 16 of the "
                "first document.",
            )
        )
    return Section(
        "How many blocks can be taken out?",
        parts,
        "Blocks are removed, or replaced by linear maps, and what is left is distilled (“Your "
        "Transformer is Secretly Linear”, arXiv 2405.12250, §4).",
    )


def _perplexity_findings(dataset: xr.Dataset) -> list[str]:
    attributes = dataset.attrs
    value, low, high = (float(dataset["perplexity" + end]) for end in ("", "_low", "_high"))
    return [
        f"{attributes['title']}: perplexity {value:.2f} [{low:.2f}, {high:.2f}] on "
        f"{count(attributes['tokens'], 'token')} with context {attributes['context']}, stride "
        f"{attributes['stride']}."
    ]


def _perplexity_section(found: list[xr.Dataset]) -> Section:
    rows: list[list[str | int | float | Cell]] = [
        [
            dataset.attrs["title"],
            interval(dataset, "perplexity", 1, ".2f"),
            interval(dataset, "nll", 1, ".3f"),
            dataset.attrs["context"],
            dataset.attrs["stride"],
            dataset.attrs["boundaries"],
            dataset.attrs["tokens"],
            dataset.attrs["documents"],
        ]
        for dataset in found
    ]
    header = ["model", "perplexity", "nats per token", "context", "stride", "windows", "tokens"]
    caption = (
        "Every token of text is scored once, from at least context − stride tokens before it once "
        "a text is that long; intervals treat tokens of one document as dependent."
    )
    return Section("Perplexity", [Table([*header, "documents"], rows, caption)])


PRUNING = Topic(
    "How many blocks can be taken out?",
    _section,
    _findings,
    "No model was pruned: analysis.pruning.curves(model, train, held_out, counts) does it.",
)
PERPLEXITY = Topic(
    "Perplexity",
    _perplexity_section,
    _perplexity_findings,
    "Not measured: analysis.perplexity.perplexity(model, documents) does it.",
)
