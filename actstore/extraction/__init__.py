"""Corpus + model → store: planned first, then computed shard by shard, by one writer or many."""

from __future__ import annotations

from actstore.extraction.extracting import extract
from actstore.extraction.forecast import Forecast, plan_extraction
from actstore.extraction.repairing import repair

__all__ = ["Forecast", "extract", "plan_extraction", "repair"]
