"""Section of spans of blocks folded into the block before."""

from __future__ import annotations

from typing import Any

import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.report.page import Picture, Section, Table
from analysis.report.topic import Topic, interval

HEADING = "Can blocks disappear in the weights before them?"


def _findings(dataset: xr.Dataset) -> list[str]:
    sentences = []
    for span in dataset.span.values.tolist():
        at = dataset.sel(span=span)
        parts = [_ratio(at.sel(variant=name)) for name in ("removed", "folded")]
        sentences.append(
            f"{dataset.attrs['title']}: without blocks {span} perplexity is {parts[0]} times the "
            f"whole model's, with a map folded into block {int(at.start) - 1} {parts[1]} times."
        )
    return sentences


def _ratio(at: xr.Dataset) -> str:
    value, low, high = (float(at[f"ratio{end}"]) for end in ("", "_low", "_high"))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.folding(dataset)],
                f"{attributes['title']}: perplexity on {count(attributes['tokens'], 'token')}, "
                f"times that of the whole model ({float(dataset.whole):.1f}), with spans of "
                "blocks removed and with the least-squares map of what they did folded into the "
                "last feed-forward matrix of the block before. Whiskers are "
                f"{attributes['level']:.0%} intervals, paired by document.",
            )
        )
        rows = [
            [
                span,
                variant,
                interval(at := dataset.sel(span=span, variant=variant), "perplexity", 1, ".2f"),
                interval(at, "ratio", 1, ".3f"),
            ]
            for span in dataset.span.values.tolist()
            for variant in dataset.variant.values.tolist()
        ]
        parts.append(
            Table(
                ["blocks", "variant", "perplexity", "times the whole model's"],
                rows,
                f"{attributes['title']}: the numbers of the picture.",
                folded="The picture as numbers",
            )
        )
    return Section(HEADING, parts, "ReplaceMe, Shopkhoev et al., arXiv 2505.02819.")


FOLDING = Topic(
    HEADING,
    _section,
    _findings,
    "No folded models here: they need the model, a run with mlp and resid, and text to score. "
    "Compute them with analysis.folding.compare(model, run, documents, [range(20, 24)]).",
)
