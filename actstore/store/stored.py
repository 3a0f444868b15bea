"""A run as it lies on disk: its record, its journal, and what of it can be seen."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from actstore.errors import CorruptionError
from actstore.store.backend import Backend
from actstore.store.chunks import ChunkReader
from actstore.store.columns import read_column
from actstore.store.journal import Journal
from actstore.store.layout import chunk_name
from actstore.store.record import CHANGED, Record, has_changed, load_record
from actstore.store.sequences import Sequences
from actstore.store.verify import Problem, metadata_problems, presence_problems
from actstore.wording import count


class StoredRun:
    """Snapshot of a run at the moment it was opened.

    Attributes
    ----------
    metadata : list of Problem
        Groups' and arrays' metadata that is not what was written; reading does without it.
    problems : list of Problem
        What the quick check found: that, and missing or short files.
    nbytes : int
        Size of the chunks on disk.
    """

    def __init__(self, backend: Backend, record: Record) -> None:
        self.backend = backend
        self.record = record
        self.journal = Journal(backend, record)
        sizes = {site: backend.sizes(f"{record.name}/{site}") for site in record.sites}
        self.metadata: list[Problem] = metadata_problems(backend, record)
        self.problems: list[Problem] = [
            *presence_problems(backend, record, self.journal, sizes),
            *self.metadata,
        ]
        self._files = {site: set(names) for site, names in sizes.items()}
        self.nbytes = sum(
            size for files in sizes.values() for name, size in files.items() if name != "zarr.json"
        )
        self.reader = ChunkReader(backend, record, self.journal)
        self._columns: dict[str, np.ndarray] = {}

    @classmethod
    def load(cls, backend: Backend, name: str) -> StoredRun | None:
        """The run called ``model/corpus``; None if there is none or only an unfinished plan."""
        while (record := load_record(backend, name)) is not None:
            stored = cls(backend, record)
            if not stored.problems or stored._is_current():
                return stored
        return None

    def _is_current(self) -> bool:
        """Whether record and journal are still those that were read before the files' sizes."""
        return load_record(self.backend, self.record.name) == self.record and self.journal.equals(
            Journal(self.backend, self.record)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}, "sequences": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state.pop("sequences")
        self.__dict__.update(state)

    @cached_property
    def sequences(self) -> Sequences:
        return Sequences(self.backend, self.record)

    def unentered(self) -> list[int]:
        """Shards with chunks on the disk of which the journal says nothing."""
        return [
            shard
            for shard in range(self.record.n_shards)
            if any(
                chunk_name(layer, shard) in self._files[site]
                for site in self.record.sites
                for layer in np.flatnonzero(~self.journal.committed(site)[:, shard]).tolist()
            )
        ]

    def column(self, name: str) -> np.ndarray:
        """(n_samples,) values of a sample coordinate, proved and kept in memory."""
        if name not in self._columns:
            key = f"{self.record.name}/{name}"
            try:
                values = read_column(self.backend, key, self.record.content[name])
            except CorruptionError:
                if has_changed(self.backend, self.record):
                    raise CorruptionError(f"{self.record.name} {CHANGED}: open it again") from None
                raise
            values.flags.writeable = False
            self._columns[name] = values
        return self._columns[name]

    def visible(self) -> tuple[dict[str, list[int]], np.ndarray]:
        """What can be seen: layers of each site, and (n_shards,) bool.

        The shards are those of the request that covers most of them; a (site, layer) is
        visible where it is committed for all of these.
        """
        best = np.zeros(self.record.n_shards, bool)
        for request in self.record.requests:
            covered = self.covered(request)
            if covered.sum() > best.sum():
                best = covered
        if not best.any():
            return dict(self.record.requests[0]), best
        sites = {}
        for site, layers in self.record.wanted().items():
            done = np.flatnonzero(self.journal.committed(site)[:, best].all(axis=1)).tolist()
            if seen := [layer for layer in layers if layer in done]:
                sites[site] = seen
        return sites, best

    def covered(self, request: dict[str, list[int]]) -> np.ndarray:
        """(n_shards,) bool: shards committed for all of a request."""
        done = np.ones(self.record.n_shards, bool)
        for site, layers in request.items():
            done &= self.journal.committed(site)[layers].all(axis=0)
        return done

    @property
    def state(self) -> str:
        """``complete``, ``k of n shards``, or how much is damaged."""
        if self.problems:
            return f"damaged: {count(len(self.problems), 'problem')}"
        wanted, total = self.record.wanted(), self.record.n_shards
        done = int(self.covered(wanted).sum())
        if done == total:
            return "complete"
        sites, shards = self.visible()
        if not shards.all():
            return f"{done} of {count(total, 'shard')}"
        added = [site for site in wanted if wanted[site] != sites.get(site)]
        return f"complete; {', '.join(added)} {done} of {count(total, 'shard')}"
