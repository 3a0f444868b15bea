"""The labelled store: planned, written shard by shard, committed by a journal, read lazily."""

from __future__ import annotations

from actstore.store.builder import RunBuilder, create_run
from actstore.store.catalog import Store, open, verify_run
from actstore.store.codecs import check_codec, check_same_codec
from actstore.store.folders import free_room, holds
from actstore.store.resume import resume_run
from actstore.store.rows import RowBlock
from actstore.store.run import Run
from actstore.store.sharing import Share, has_locks
from actstore.store.table import human_bytes
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
    "check_codec",
    "check_same_codec",
    "create_run",
    "free_room",
    "has_locks",
    "holds",
    "human_bytes",
    "open",
    "resume_run",
    "verify_run",
]
