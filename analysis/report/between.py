"""Section of affine maps between two models."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.report.page import Cell, Picture, Section, Table
from analysis.report.topic import Topic, interval

Row = list[str | int | float | Cell]
HEADING = "Which layer of one model is which of the other?"


def _best(dataset: xr.Dataset, name: str) -> xr.Dataset:
    values = dataset[name].transpose("a", "b").values
    a, b = np.unravel_index(int(np.argmax(values)), values.shape)
    return dataset.isel(a=a, b=b)


def _findings(dataset: xr.Dataset) -> list[str]:
    first, second = dataset.attrs["models"]
    sentences = []
    for name, source, target in (("forth", first, second), ("back", second, first)):
        at = _best(dataset, name)
        layers = (int(at.a), int(at.b)) if name == "forth" else (int(at.b), int(at.a))
        value, low, high = (float(at[name + end]) for end in ("", "_low", "_high"))
        sentences.append(
            f"{dataset.attrs['title']}: an affine map recovers most of {target} from layer "
            f"{layers[0]} of {source} to layer {layers[1]}, r² {value:.3f} [{low:.3f}, {high:.3f}] "
            "on documents not fitted on."
        )
    return sentences


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        first, second = dataset.attrs["models"]
        parts.append(
            Picture(
                [plots.between(dataset)],
                f"{dataset.attrs['title']}: r² of least-squares affine maps between every layer of "
                f"{first} and every layer of {second}, on "
                f"{count(dataset.attrs['samples'], 'sample')} of "
                "documents not fitted on, mean over the target's coordinates. Left from rows to "
                "columns, right from columns to rows.",
            )
        )
        rows: list[Row] = [
            [int(a), int(b), interval(at, "forth", 1, ".3f"), interval(at, "back", 1, ".3f")]
            for a in dataset.a.values
            for b in dataset.b.values
            if (at := dataset.sel(a=a, b=b)) is not None
        ]
        parts.append(
            Table(
                [f"layer of {first}", f"layer of {second}", f"to {second}", f"to {first}"],
                rows,
                f"{dataset.attrs['title']}: the numbers, with the ends of their "
                f"{dataset.attrs['level']:.0%} intervals.",
                folded="The heat maps as numbers",
            )
        )
    return Section(HEADING, parts)


BETWEEN = Topic(
    HEADING,
    _section,
    _findings,
    "No maps between models here: they need runs of two models on one corpus. Compute them with "
    "analysis.between.scores(run_of_one, run_of_the_other).",
)
