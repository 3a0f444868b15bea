"""Several writers of one run: which shards are whose, and how they get out of each other's way."""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from typing import Any

from actstore.errors import LockedError, StoreError
from actstore.store.backend import Backend, backend_for, location
from actstore.store.layout import JOURNAL, SEQUENCES
from actstore.store.lock import FolderLock, ShardLocks
from actstore.store.record import load_record

_PATIENCE = 5.0
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a run that one of several writers owns: shards k with k mod n = rank.

    Attributes
    ----------
    rank : int
        0 … world_size − 1.
    world_size : int
        How many writers there are.

    Raises
    ------
    StoreError
        For other numbers.
    """

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        try:
            rank, size = operator.index(self.rank), operator.index(self.world_size)
        except TypeError:
            rank, size = -1, 0
        if not 0 <= rank < size:
            raise StoreError(
                f"rank={self.rank!r} of world_size={self.world_size!r}: give both, as whole "
                "numbers, with 0 ≤ rank < world_size"
            )

    def shards(self, n_shards: int) -> list[int]:
        """Numbers of the shards that are this writer's."""
        return list(range(self.rank, n_shards, self.world_size))

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


def has_locks(store: Any) -> bool:
    """Whether writers of a store (path, URL or zarr Store) can refuse each other."""
    return backend_for(store).root is not None


def join_run(backend: Backend, name: str) -> FolderLock | None:
    """The lock that the writers of shares hold together; None where the run has been removed.

    Waits while the run is being planned, and a few seconds longer, in which the one that planned
    it comes to share; LockedError where somebody writes the whole run.
    """
    root = backend.root
    what = f"{name} in {location(backend)}"
    if root is None:
        return FolderLock(None, what)
    planned_since: float | None = None
    while True:
        try:
            return FolderLock(root / name, what, shared=True)
        except FileNotFoundError:
            return None
        except LockedError:
            if load_record(backend, name) is not None:
                planned_since = planned_since or time.monotonic()
                if time.monotonic() - planned_since > _PATIENCE:
                    raise
            time.sleep(_PAUSE)


def preparing(backend: Backend, name: str) -> FolderLock:
    """The lock under which the writers of shares look after what they share, one at a time."""
    root = backend.root
    folder = None if root is None else root / name / SEQUENCES
    return FolderLock(folder, f"{name} in {location(backend)}", wait=True)


def lock_shards(backend: Backend, name: str, shards: list[int]) -> ShardLocks:
    """Locks on a share's shards; LockedError where another writer has one of them."""
    root = backend.root
    file = None if root is None else root / name / JOURNAL / "zarr.json"
    return ShardLocks(file, shards, f"{name} in {location(backend)}")
