"""Section of activation transport operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from analysis import plots
from analysis.report.page import Cell, Picture, Section, Table
from analysis.report.topic import Topic, interval

Row = list[str | int | float | Cell]
HEADING = "How much is carried on linearly, and how far?"


def _ahead(offset: int) -> str:
    return "at the same token" if offset == 0 else f"{offset} token{'s' * (offset > 1)} ahead"


def _findings(dataset: xr.Dataset) -> list[str]:
    parts = []
    for offset in dataset.offset.values.tolist():
        at = dataset.sel(offset=offset)
        parts.append(
            f"{_ahead(offset)} {float(at.r2_white.mean()):.3f} of a ceiling of "
            f"{float(at.ceiling.mean()):.3f}"
        )
    return [
        f"{dataset.attrs['title']}: mean whitened r² of the operators over all pairs of layers is "
        f"{', '.join(parts)}."
    ]


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        samples = ", ".join(
            f"{int(n):,} {_ahead(int(k))}"
            for k, n in zip(dataset.offset.values, dataset.samples.values, strict=True)
        )
        parts.append(
            Picture(
                [plots.transport(dataset.sel(offset=[k])) for k in dataset.offset.values.tolist()],
                f"{dataset.attrs['title']}: r² of affine maps from the layer of each row to that "
                "of each column, over the whitened directions of the target, on samples of "
                f"documents not fitted on ({samples}). Beside it the same to the last layer, with "
                "its ceiling Σρ²/d from the canonical correlations ρ on these samples: no affine "
                "map does better there. Clipped to [0, 1] in the heat map. Bands are 95% "
                "jackknife intervals over groups of documents.",
            )
        )
        rows: list[Row] = [
            [int(k), int(a), int(b), *(_cell(at, name) for name in _COLUMNS)]
            for k in dataset.offset.values
            for a in dataset.source.values
            for b in dataset.target.values
            if np.isfinite(float((at := dataset.sel(offset=k, source=a, target=b)).r2))
        ]
        parts.append(
            Table(
                ["tokens ahead", "from", "to", *_COLUMNS.values()],
                rows,
                f"{dataset.attrs['title']}: every pair of layers; efficiency is whitened r² over "
                "the ceiling, dimension Σρ².",
                folded="The numbers of every pair",
            )
        )
    return Section(
        HEADING, parts, "“Activation Transport Operators”, Szablewski & Masiak, arXiv 2508.17540."
    )


_COLUMNS = {
    "r2": "r²",
    "r2_white": "whitened r²",
    "ceiling": "ceiling",
    "efficiency": "efficiency",
    "dimension": "dimension",
}


def _cell(at: xr.Dataset, name: str) -> Cell:
    form = ".1f" if name == "dimension" else ".3f"
    if f"{name}_low" in at:
        return interval(at, name, 1, form)
    value = float(at[name])
    return Cell(f"{value:{form}}", value)


TRANSPORT = Topic(
    HEADING,
    _section,
    _findings,
    "No transport operators here: they need two runs of other documents, with all positions for "
    "later tokens. Compute them with analysis.transport.operators(train, held_out).",
)
