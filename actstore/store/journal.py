"""The journal: which chunks of a run are committed, with their sizes and checksums.

``journal/<site>`` is a Zarr array (layer or block, shard, 2) of uint64: size in bytes and
CRC-32C of each committed chunk, 0 for the others. One chunk of it holds one shard's entries
for every layer, so that replacing one small file commits a shard at once.
"""

from __future__ import annotations

import google_crc32c
import numpy as np

from actstore.store.backend import Backend
from actstore.store.layout import JOURNAL, journal_name
from actstore.store.record import Record

_ENTRY = np.dtype("<u8")


class Journal:
    """Entries of every site of a run, in memory as on disk.

    Attributes
    ----------
    entries : dict of str to (size, n_shards, 2) uint64
    damaged : dict of (site, shard) to str
        Journal files whose bytes are not those that were written; their shards count as not
        committed.
    """

    def __init__(self, backend: Backend, record: Record) -> None:
        self._backend = backend
        self._name = record.name
        self.entries: dict[str, np.ndarray] = {}
        self.damaged: dict[tuple[str, int], str] = {}
        for site, spec in record.sites.items():
            entries = np.zeros((spec.size, record.n_shards, 2), _ENTRY)
            folder = f"{self._name}/{JOURNAL}/{site}"
            present = backend.sizes(folder)
            for shard in range(record.n_shards):
                name = journal_name(shard)
                if name not in present:
                    continue
                data = backend.get(f"{folder}/{name}")
                if data is None:  # removed since it was listed
                    continue
                try:
                    entries[:, shard] = _decode(data, spec.size)
                except ValueError as error:
                    self.damaged[site, shard] = str(error)
            self.entries[site] = entries

    def entry(self, site: str, layer: int, shard: int) -> tuple[int, int]:
        """Size in bytes and CRC-32C of a committed chunk."""
        nbytes, checksum = self.entries[site][layer, shard]
        return int(nbytes), int(checksum)

    def committed(self, site: str) -> np.ndarray:
        """(size, n_shards) bool."""
        return self.entries[site][:, :, 0] != 0

    def equals(self, other: Journal) -> bool:
        """Whether another reading of the same journal found the same."""
        return self.damaged == other.damaged and all(
            np.array_equal(self.entries[site], other.entries[site]) for site in self.entries
        )

    def commit(self, shard: int, entries: dict[str, np.ndarray]) -> None:
        """Replace a shard's entries, one (size, 2) array a site; durable on return."""
        for site, values in entries.items():
            folder = f"{self._name}/{JOURNAL}/{site}"
            self._backend.put(f"{folder}/{journal_name(shard)}", _encode(values))
            self.entries[site][:, shard] = values
            self.damaged.pop((site, shard), None)
            self._backend.sync_folder(folder)


def entry_bytes(size: int) -> int:
    """Bytes of one shard's file in the journal of a site with so many layers or blocks."""
    return size * 2 * _ENTRY.itemsize + 4


def _encode(entries: np.ndarray) -> bytes:
    payload = entries.astype(_ENTRY).tobytes()
    return payload + google_crc32c.value(payload).to_bytes(4, "little")


def _decode(data: bytes, size: int) -> np.ndarray:
    expected = entry_bytes(size)
    if len(data) != expected:
        raise ValueError(f"the journal has {len(data)} bytes instead of {expected}")
    if google_crc32c.value(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise ValueError("the journal's checksum is wrong")
    return np.frombuffer(data[:-4], _ENTRY).reshape(size, 2)
