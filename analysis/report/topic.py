"""What a section of the report is made from, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import xarray as xr

from analysis.report.page import Cell, Section


@dataclass(frozen=True, slots=True)
class Topic:
    """One kind of result: its section, its findings, and what to do where it is absent.

    Attributes
    ----------
    heading : str
    section : function of the results of this kind
    findings : function of one result, giving sentences
    hint : str
        Shown where there is no such result.
    """

    heading: str
    section: Callable[[list[xr.Dataset]], Section]
    findings: Callable[[xr.Dataset], list[str]]
    hint: str


def interval(dataset: xr.Dataset, name: str, factor: float, form: str) -> Cell:
    """``value [low, high]``, times a factor, that sorts by the value."""
    value, low, high = (factor * float(dataset[name + end]) for end in ("", "_low", "_high"))
    return Cell(f"{value:{form}} [{low:{form}}, {high:{form}}]", value)


def percent(dataset: xr.Dataset, name: str) -> str:
    """``value% [low, high]``; in points for gains and costs."""
    unit = " points" if name.endswith(("gain", "cost", "over_mat", "over_exit")) else "%"
    value, low, high = (100 * float(dataset[name + end]) for end in ("", "_low", "_high"))
    return f"{value:.1f}{unit} [{low:.1f}, {high:.1f}]"
