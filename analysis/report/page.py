"""The page: sections of text, figures and tables, written as one HTML file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import xarray as xr

from actstore import __version__
from actstore.errors import MissingDependencyError
from analysis.peeking import readable, visible
from analysis.plots import inline_svg

try:
    import jinja2
    from markupsafe import Markup
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingDependencyError(
        "the report needs jinja2; install it with: pip install 'actstore[plots]'"
    ) from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """Figures under one caption; they stand side by side where the page is wide enough.

    The caption says what is shown and how it was computed.
    """

    figures: Sequence[Figure]
    caption: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell that sorts by something else than what it shows."""

    text: str
    sort: float


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a click on a column's head sorts. `folded` tables open on a click."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | int | float | Cell]]
    caption: str
    folded: str | None = None


@dataclass(frozen=True, slots=True)
class Peek:
    """What `analysis.prediction.peek` returned, as one table of tokens per sample."""

    dataset: xr.Dataset
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: what it says in sentences, then figures and tables.

    `missing` says why there is nothing to show, and what to do.
    """

    title: str
    parts: Sequence[Picture | Table | Peek] = ()
    text: str = ""
    missing: str | None = None
    findings: Sequence[str] = ()


def write(
    path: str | os.PathLike[str],
    sections: Sequence[Section],
    *,
    title: str,
    findings: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
    command: str | None = None,
    absent: Mapping[str, str] | None = None,
) -> Path:
    """Write a self-contained HTML file that needs no network, on any screen, light or dark.

    Parameters
    ----------
    path : path
        File to write, whole or not at all.
    sections : sequence of Section
        In the order shown.
    title : str
        Heading of the page.
    findings : sequence of str
        Sentences above all else.
    provenance : mapping, optional
        Heading → what was computed from what, shown at the end as JSON.
    command : str, optional
        The command that makes this file again.
    absent : mapping, optional
        Heading → hint of what could be shown and is not there, listed near the end.

    Returns
    -------
    Path
        The file.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests["picture"] = lambda part: isinstance(part, Picture)
    environment.tests["table"] = lambda part: isinstance(part, Table)
    environment.tests["cell"] = lambda value: isinstance(value, Cell)
    numbers = iter(range(1_000_000))
    environment.filters["svg"] = lambda figure: Markup(inline_svg(figure, f"f{next(numbers)}"))
    environment.filters["visible"] = visible
    environment.filters["readable"] = readable
    environment.filters["samples"] = _samples
    environment.filters["shown"] = _shown
    html = environment.get_template("report.html").render(
        title=title,
        sections=sections,
        findings=findings,
        provenance={
            heading: json.dumps(record, indent=2, ensure_ascii=False)
            for heading, record in (provenance or {}).items()
        },
        command=command,
        absent=absent or {},
        version=__version__,
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{uuid4().hex}"
    try:
        scratch.write_text(html, encoding="utf-8")
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


def _samples(dataset: xr.Dataset) -> list[dict[str, Any]]:
    """What the template shows of each sample of a peek."""
    shortcuts, layers = dataset.shortcut.values.tolist(), dataset.layer.values.tolist()
    shown = []
    for place, number in enumerate(dataset.sample.values.tolist()):
        at = dataset.isel(sample=place).transpose("shortcut", "layer", ...)
        tokens, chances = at.token.values, at.probability.values
        ids = at.token_id.values
        settles, appears = at.settles.values.tolist(), at.appears.values.tolist()
        rows = [
            {
                "layer": layer,
                "cells": [
                    {
                        "settled": layer >= settles[s],
                        "hit": ids[s, row, 0] == ids[0, -1, 0],
                        "tokens": list(zip(tokens[s, row], chances[s, row].tolist(), strict=True)),
                    }
                    for s in range(len(shortcuts))
                ],
            }
            for row, layer in enumerate(layers)
        ]
        shown.append(
            {
                "number": number,
                "context": at.context.item(),
                "continuation": at.continuation.item(),
                "answer": at.answer.item(),
                "settles": list(zip(shortcuts, appears, settles, strict=True)),
                "shortcuts": shortcuts,
                "rows": rows,
            }
        )
    return shown


def _shown(value: str | int | float | Cell) -> str:
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value
