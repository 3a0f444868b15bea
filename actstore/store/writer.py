"""Writing rows: whole shards, checked, made durable, then committed by the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from actstore.errors import CorruptionError, StoreError
from actstore.store.backend import Backend
from actstore.store.dtypes import check_values
from actstore.store.encoding import chunk_bytes, encode, problem_with
from actstore.store.folders import check_room, explained
from actstore.store.journal import Journal, entry_bytes
from actstore.store.layout import chunk_name
from actstore.store.lock import FolderLock, ShardLocks
from actstore.store.record import Record
from actstore.store.sequences import Sequences
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.store.run import Run
    from actstore.store.stored import StoredRun

_THREADS = 4


class RunWriter:
    """Writes the rows of one request, a shard at a time and in any order.

    Leave it as a context manager, or call `close`, to release the locks.

    Attributes
    ----------
    n_samples, n_shards : int
    request : dict of str to list of int
        Site to layers or blocks that each `write` brings.
    mended : list of str
        What was not as it was written when the run was gone on with: written again, or pending.

    Parameters
    ----------
    locks
        Held until `close`.
    shards : sequence of int, optional
        Those that are this writer's; by default all.
    """

    def __init__(
        self,
        backend: Backend,
        record: Record,
        request: Mapping[str, Sequence[int]],
        *locks: FolderLock | ShardLocks,
        shards: Sequence[int] | None = None,
        mended: Sequence[str] = (),
    ) -> None:
        self._backend = backend
        self._record = record
        self._locks = locks
        self._owned = np.zeros(record.n_shards, bool)
        self._owned[slice(None) if shards is None else shards] = True
        self._journal = Journal(backend, record)
        self._sequences = Sequences(backend, record)
        self.request = {site: list(layers) for site, layers in request.items()}
        self.mended = list(mended)

    @property
    def n_samples(self) -> int:
        return self._record.n_samples

    @property
    def n_shards(self) -> int:
        return self._record.n_shards

    @property
    def shard_rows(self) -> int:
        return self._record.shard_rows

    @property
    def codec(self) -> str:
        return self._record.codec

    @property
    def model(self) -> str:
        return self._record.model

    @property
    def corpus(self) -> str:
        return self._record.corpus

    @property
    def name(self) -> str:
        """``model/corpus``."""
        return self._record.name

    def pending(self) -> list[int]:
        """This writer's shards that still lack any (site, layer) of the request."""
        return [int(shard) for shard in np.flatnonzero(self._owned & ~self._done())]

    @property
    def pending_chunks(self) -> dict[str, int]:
        """How many chunks of each site this writer still has to write."""
        return {
            site: int((~self._journal.committed(site)[layers][:, self._owned]).sum())
            for site, layers in self.request.items()
        }

    @property
    def pending_bytes(self) -> int:
        """Size of the chunks that this writer still has to write; the most, if compressed."""
        record, rows = self._record, self._record.shard_rows
        return sum(
            n * chunk_bytes(rows, record.sites[site].width, record.stored, record.codec)
            for site, n in self.pending_chunks.items()
        )

    @property
    def pending_journal(self) -> tuple[int, int]:
        """Files of the journal that come with them, and their bytes."""
        sites = [self._record.sites[site].size for site in self.request]
        n = len(self.pending())
        return n * len(sites), n * sum(map(entry_bytes, sites))

    def skip_committed(self, journal: Journal) -> None:
        """Count as done what another journal of the same plan has; for a forecast only."""
        for site, entries in journal.entries.items():
            if site in self._journal.entries:
                self._journal.entries[site] |= entries

    def check_room(self) -> None:
        """StoreError where the disk has too little room for what is pending."""
        check_room(self._backend, self.pending_bytes, self.name)

    def shard_size(self, shard: int) -> int:
        """Rows of a shard."""
        start, stop = self._range(shard)
        return stop - start

    def shard_samples(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Sequence numbers (int64) and positions (int32) of a shard's rows."""
        start, stop = self._range(shard)
        sequence, position = (
            np.asarray(self._column(name)[start:stop]) for name in ("sequence", "position")
        )
        return sequence.astype(np.int64), position.astype(np.int32)

    def input_ids(self, numbers: Iterable[int] | np.ndarray) -> list[np.ndarray]:
        """Token ids (int32) of sequences by their number in the run."""
        return self._sequences.input_ids(np.asarray(numbers, np.int64))

    def write(self, shard: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Check, write and commit a shard's rows; committed and durable on return.

        Parameters
        ----------
        shard : int
        arrays : dict of str to (n_layers, n_rows, width) float16, float32 or float64
            Every site of `request`, its layers in that order. (site, layer)s that are
            committed already are left as they are.

        Raises
        ------
        NonFiniteError, DtypeOverflowError
            Naming site, layer and samples; nothing of the shard is committed.
        StoreError
            A wrong shape, or the disk's failure: what is committed stays safe.
        """
        start, stop = self._range(shard)
        self._check_shapes(arrays, stop - start)
        todo = [
            (site, layer, arrays[site][at])
            for site, layers in self.request.items()
            for at, layer in enumerate(layers)
            if not self._journal.committed(site)[layer, shard]
        ]
        for site, layer, values in todo:
            where = f"{self.name}, {site} {self._record.sites[site].dim} {layer}"
            check_values(values, self._record.stored, where, start)
        entries = {site: self._journal.entries[site][:, shard].copy() for site, _, _ in todo}
        what = f"shard {shard} of {self.n_shards} of {self.name} cannot be written"
        with explained(what, self._backend, self._safe()):
            try:
                with ThreadPoolExecutor(_THREADS) as pool:
                    written = list(pool.map(lambda item: self._put(shard, *item), todo))
                for site in entries:
                    self._backend.sync_folder(f"{self.name}/{site}")
            except BaseException:
                self._discard(shard, todo)
                raise
            for (site, layer, _), entry in zip(todo, written, strict=True):
                entries[site][layer] = entry
            if entries:
                self._journal.commit(shard, entries)

    def adopt(self, shard: int, other: StoredRun) -> None:
        """Take a shard over from another run of the store whose rows are the same there.

        What the other run has of the request is copied (linked, on a local folder) and committed.

        Raises
        ------
        CorruptionError
            A chunk of the other run is not what was committed.
        """
        self._range(shard)
        entries = {site: self._journal.entries[site][:, shard].copy() for site in self.request}
        with explained(f"shard {shard} of {self.name} cannot be written", self._backend):
            for site, layers in self.request.items():
                for layer in layers:
                    known = site in other.record.sites
                    told = other.journal.entry(site, layer, shard) if known else (0, 0)
                    if not told[0]:
                        continue
                    name = chunk_name(layer, shard)
                    source = f"{other.record.name}/{site}/{name}"
                    wrong = problem_with(self._backend.get(source), *told)
                    if wrong is not None:
                        raise CorruptionError(f"{source}: {wrong}; repair that run first")
                    self._backend.copy(source, f"{self.name}/{site}/{name}")
                    entries[site][layer] = told
                self._backend.sync_folder(f"{self.name}/{site}")
            self._journal.commit(shard, entries)

    @property
    def run(self) -> Run:
        """The run as it can be read now."""
        from actstore.store.run import Run

        return Run.load(self._backend, self.name)

    def close(self) -> None:
        """Release the locks."""
        for lock in self._locks:
            lock.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _done(self) -> np.ndarray:
        """(n_shards,) bool: committed for all of the request."""
        done = np.ones(self.n_shards, bool)
        for site, layers in self.request.items():
            done &= self._journal.committed(site)[layers].all(axis=0)
        return done

    def _put(self, shard: int, site: str, layer: int, values: np.ndarray) -> tuple[int, int]:
        record = self._record
        data, checksum = encode(values, record.shard_rows, record.stored, record.codec)
        key = f"{self.name}/{site}/{chunk_name(layer, shard)}"
        self._backend.put(key, data)
        if (size := self._backend.size(key)) != data.nbytes:
            raise StoreError(
                f"{key} has {size} bytes after {data.nbytes} were written: the file system lost "
                "some; nothing of this shard was committed"
            )
        return data.nbytes, checksum

    def _discard(self, shard: int, todo: list[tuple[str, int, np.ndarray]]) -> None:
        """Free what an uncommitted shard takes on the disk."""
        for site, layer, _ in todo:
            try:
                self._backend.delete(f"{self.name}/{site}/{chunk_name(layer, shard)}")
            except OSError:
                return

    def _safe(self) -> str:
        done = int(self._done().sum())
        return (
            f"The {done} committed of {count(self.n_shards, 'shard')} are safe; make room or "
            "lift the "
            "limit, and run the same call again to resume"
        )

    def _range(self, shard: int) -> tuple[int, int]:
        if not 0 <= shard < self.n_shards:
            raise StoreError(
                f"shard {shard} asked for, but {self.name} has shards 0…{self.n_shards - 1}"
            )
        if not self._owned[shard]:
            raise StoreError(f"shard {shard} of {self.name} belongs to another writer")
        return self._record.shard_range(shard)

    def _check_shapes(self, arrays: Mapping[str, Any], rows: int) -> None:
        if set(arrays) != set(self.request):
            raise StoreError(
                f"{self.name}: sites {sorted(arrays)} given, but the request is of "
                f"{sorted(self.request)}"
            )
        for site, layers in self.request.items():
            expected = (len(layers), rows, self._record.sites[site].width)
            values = arrays[site]
            if values.shape != expected or values.dtype.kind != "f":
                raise StoreError(
                    f"{self.name}: {site} is {values.dtype} of shape {values.shape}, not floating "
                    f"point of shape {expected} (layers, rows, width)"
                )

    def _column(self, name: str) -> zarr.Array:
        return zarr.open_array(self._backend.zarr, path=f"{self.name}/{name}", mode="r")
