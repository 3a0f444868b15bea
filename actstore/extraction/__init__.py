"""Corpus + model → store: planned first, then computed shard by shard, by one writer or many.

Names are imported on first use: a Gram of a stored run needs no model, and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actstore.extraction.extracting import extract
    from actstore.extraction.forecast import Forecast, plan_extraction
    from actstore.extraction.gramming import gram, plan_gram
    from actstore.extraction.repairing import repair

_HOME = {
    "Forecast": "forecast",
    "extract": "extracting",
    "gram": "gramming",
    "plan_extraction": "forecast",
    "plan_gram": "gramming",
    "repair": "repairing",
}

__all__ = ["Forecast", "extract", "gram", "plan_extraction", "plan_gram", "repair"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
