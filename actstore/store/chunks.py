"""Reading rows of chunks, each checked against the journal before it is trusted."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

from actstore.errors import CorruptionError
from actstore.store.backend import Backend
from actstore.store.codecs import decompress_into
from actstore.store.dtypes import StoredDtype, from_disk
from actstore.store.encoding import TRAILER, chunk_bytes, problem_with
from actstore.store.journal import Journal
from actstore.store.layout import chunk_name
from actstore.store.record import CHANGED, Record, has_changed

_AHEAD_FILES = 8
_AHEAD_BYTES = 32 * 2**20
_MEASURED = 1 << 19
_CACHED_RATE = 4e9
"""Bytes a second: what comes slower than this, and is large enough to tell, is not cached."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells whether a file is still the one that was checked."""

    inode: int
    size: int
    modified: int


class ChunkReader:
    """Reads rows of chunks, each chunk checked against the journal before its first use.

    The whole chunk is read and its checksum compared the first time; from then on, as long as
    the file is the same, only the rows asked for are read (local stores). A compressed chunk is
    read and checked whole each time; a thread keeps the last one that it decompressed.

    Parameters
    ----------
    backend : Backend
    record : Record
    journal : Journal
    """

    def __init__(self, backend: Backend, record: Record, journal: Journal) -> None:
        self._backend = backend
        self._record = record
        self._journal = journal
        self._checked: dict[tuple[str, int, int], _Stamp] = {}
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"_backend": self._backend, "_record": self._record, "_journal": self._journal}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["_backend"], state["_record"], state["_journal"])  # type: ignore[misc]

    def read(
        self, site: str, layer: int, shard: int, rows: slice | np.ndarray, out: np.ndarray
    ) -> None:
        """Fill `out` with rows of one chunk.

        Parameters
        ----------
        rows : slice or (n,) int64
            Increasing row numbers inside the shard.
        out : (n, width) of the dtype that reading gives

        Raises
        ------
        CorruptionError
            The chunk is missing or its bytes are not those that were committed.
        """
        if out.shape[0] == 0:
            return
        dtype = self._record.stored
        if isinstance(rows, slice):
            first, stop = rows.start, rows.stop
            if dtype.disk == dtype.memory and out.flags.c_contiguous:
                self._fetch(site, layer, shard, first, stop, out)
                return
            from_disk(self._fetch(site, layer, shard, first, stop, None), dtype, out)
            return
        first, stop = int(rows[0]), int(rows[-1]) + 1
        items = self._fetch(site, layer, shard, first, stop, None)
        from_disk(items[rows - first], dtype, out)

    def _fetch(
        self, site: str, layer: int, shard: int, first: int, stop: int, out: np.ndarray | None
    ) -> np.ndarray:
        """Rows [first, stop) as stored, in `out` or in this thread's buffer."""
        record = self._record
        key = f"{record.name}/{site}/{chunk_name(layer, shard)}"
        nbytes, checksum = self._journal.entry(site, layer, shard)
        width = record.sites[site].width + record.stored.extra
        root = self._backend.root
        if root is None:
            data = self._backend.get(key)
            self._check(problem_with(data, nbytes, checksum), site, layer, shard)
            payload = np.frombuffer(data or b"", np.uint8)[:-TRAILER]
            if record.codec != "none":
                payload = self._decompressed(payload, site, layer, shard)
            return _into(_rows(payload, width, record.stored)[first:stop], out)
        try:
            descriptor = os.open(root / key, os.O_RDONLY)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            what = "the chunk is missing" if missing else f"the chunk cannot be read ({error})"
            raise self._error(what, site, layer, shard) from None
        try:
            stat = os.fstat(descriptor)
            stamp = _Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns)
            self._ahead(site, layer, shard)
            row_bytes = width * record.stored.disk.itemsize
            if record.codec != "none":
                plain = self._unpacked(descriptor, stamp, site, layer, shard)
                return _into(_rows(plain, width, record.stored)[first:stop], out)
            if self._checked.get((site, layer, shard)) == stamp:
                target = self._buffer((stop - first) * row_bytes) if out is None else _flat(out)
                self._fill(descriptor, target, first * row_bytes, site, layer, shard)
                return _rows(target, width, record.stored) if out is None else out
            if stat.st_size != nbytes:
                what = f"the chunk has {stat.st_size:,} bytes instead of {nbytes:,}"
                raise self._error(what, site, layer, shard)
            start, end = record.shard_range(shard)
            if out is not None and first == 0 and stop == end - start:
                target = _flat(out)
                rest = np.empty(nbytes - target.nbytes, np.uint8)
                self._fill(descriptor, target, 0, site, layer, shard)
                self._fill(descriptor, rest, target.nbytes, site, layer, shard)
                found = google_crc32c.extend(google_crc32c.value(target), rest[:-TRAILER].tobytes())
                told = int.from_bytes(rest[-TRAILER:].tobytes(), "little")
                bad = None if found == told == checksum else "the chunk's checksum is wrong"
                self._check(bad, site, layer, shard)
                self._checked[site, layer, shard] = stamp
                return out
            whole = self._buffer(nbytes)
            self._fill(descriptor, whole, 0, site, layer, shard)
            self._check(problem_with(whole, nbytes, checksum), site, layer, shard)
            self._checked[site, layer, shard] = stamp
            return _into(_rows(whole[:-TRAILER], width, record.stored)[first:stop], out)
        finally:
            os.close(descriptor)

    def _unpacked(
        self, descriptor: int, stamp: _Stamp, site: str, layer: int, shard: int
    ) -> np.ndarray:
        """All bytes of a compressed chunk, as this thread holds them or from its file."""
        here = (site, layer, shard, stamp)
        if getattr(self._local, "held", None) == here:
            return self._local.plain
        nbytes, checksum = self._journal.entry(site, layer, shard)
        if stamp.size != nbytes:
            what = f"the chunk has {stamp.size:,} bytes instead of {nbytes:,}"
            raise self._error(what, site, layer, shard)
        packed = self._buffer(nbytes)
        self._fill(descriptor, packed, 0, site, layer, shard)
        self._check(problem_with(packed, nbytes, checksum), site, layer, shard)
        plain = self._decompressed(packed[:-TRAILER], site, layer, shard)
        self._local.held = here
        return plain

    def _decompressed(self, payload: np.ndarray, site: str, layer: int, shard: int) -> np.ndarray:
        """All bytes of a chunk, in memory of this thread, from its checked file."""
        record, local = self._record, self._local
        size = record.sites[site].width + record.stored.extra
        nbytes = record.shard_rows * size * record.stored.disk.itemsize
        local.held = None
        if getattr(local, "plain", None) is None or local.plain.nbytes != nbytes:
            local.plain = np.empty(nbytes, np.uint8)
        self._check(decompress_into(payload, local.plain), site, layer, shard)
        return local.plain

    def _ahead(self, site: str, layer: int, shard: int) -> None:
        """Have the disk fetch what a thread that reads chunks in order comes to next."""
        local, size, n_shards = self._local, self._record.sites[site].size, self._record.n_shards
        # Layer by layer, or shard by shard: each order has a number for every chunk.
        here = (layer * n_shards + shard, shard * size + layer)
        before, local.here = getattr(local, "here", None), (site, here)
        order = None
        if before is not None and before[0] == site:
            order = next((k for k in (0, 1) if here[k] == before[1][k] + 1), None)
        if order is None:
            local.waits, local.asked = False, 0
            return
        if not local.waits:
            return
        record = self._record
        width = record.sites[site].width
        nbytes = chunk_bytes(record.shard_rows, width, record.stored, record.codec)
        far = here[order] + max(min(_AHEAD_BYTES // nbytes, _AHEAD_FILES), 1)
        for number in range(max(here[order], local.asked) + 1, min(far + 1, size * n_shards)):
            at = divmod(number, n_shards) if order == 0 else divmod(number, size)[::-1]
            self._fetch_soon(f"{self._record.name}/{site}/{chunk_name(*at)}")
        local.asked = far

    def _fetch_soon(self, key: str) -> None:
        root = self._backend.root
        with contextlib.suppress(OSError, AttributeError):  # not every system has posix_fadvise
            file = os.open(f"{root}/{key}", os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)

    def _fill(
        self, descriptor: int, target: np.ndarray, offset: int, site: str, layer: int, shard: int
    ) -> None:
        view = target.data
        begin = time.perf_counter()
        while view:
            try:
                got = os.preadv(descriptor, [view], offset)
            except OSError as error:
                what = f"the chunk cannot be read ({error})"
                raise self._error(what, site, layer, shard) from None
            if got == 0:
                raise self._error("the chunk ends early", site, layer, shard)
            view = view[got:]
            offset += got
        took = time.perf_counter() - begin
        if target.nbytes >= _MEASURED and target.nbytes < _CACHED_RATE * took:
            self._local.waits = True

    def _buffer(self, nbytes: int) -> np.ndarray:
        """This thread's scratch memory: fresh pages would cost more than the read."""
        buffer = getattr(self._local, "buffer", None)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._local.buffer = np.empty(nbytes, np.uint8)
        return buffer[:nbytes]

    def _check(self, what: str | None, site: str, layer: int, shard: int) -> None:
        if what is not None:
            raise self._error(what, site, layer, shard)

    def _error(self, what: str, site: str, layer: int, shard: int) -> CorruptionError:
        record = self._record
        start, stop = record.shard_range(shard)
        if has_changed(self._backend, record):
            return CorruptionError(f"{record.name} {CHANGED} ({what}): open it again")
        return CorruptionError(
            f"{record.name}: {site} {record.sites[site].dim} {layer}, shard {shard} (samples "
            f"{start}…{stop - 1}): {what}; run.verify() lists every problem, and actstore.repair "
            "(on the command line: actstore repair) computes what is bad again"
        )


def _flat(out: np.ndarray) -> np.ndarray:
    return out.reshape(-1).view(np.uint8)


def _rows(data: np.ndarray, width: int, dtype: StoredDtype) -> np.ndarray:
    return data.view(dtype.disk).reshape(-1, width)


def _into(items: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None:
        return items
    np.copyto(out, items)
    return out
