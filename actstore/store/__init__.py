"""The labelled store: planned, written shard by shard, committed by a journal, read lazily."""

from __future__ import annotations

from actstore.store.builder import RunBuilder, create_run
from actstore.store.catalog import Store, open
from actstore.store.resume import resume_run
from actstore.store.rows import RowBlock
from actstore.store.run import Run
from actstore.store.sharing import Share
from actstore.store.verify import Problem
from actstore.store.writer import RunWriter

__all__ = [
    "Problem",
    "RowBlock",
    "Run",
    "RunBuilder",
    "RunWriter",
    "Share",
    "Store",
    "create_run",
    "open",
    "resume_run",
]
