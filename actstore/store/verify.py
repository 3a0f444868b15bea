"""Checks of a run: the quick one at every open, the whole one on request."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from actstore.errors import CorruptionError, StoreVersionError
from actstore.store.backend import Backend
from actstore.store.columns import column_problem
from actstore.store.encoding import problem_with
from actstore.store.groups import PLAIN_GROUP, ROOT_GROUP
from actstore.store.journal import Journal
from actstore.store.layout import JOURNAL, SEQUENCES, chunk_name
from actstore.store.record import Record
from actstore.wording import count


@dataclass(frozen=True, slots=True)
class Problem:
    """Something on disk that is not what was written.

    Attributes
    ----------
    run : str
        ``model/corpus``.
    what : str
        What is wrong.
    site, layer, shard, samples
        Which rows cannot be trusted: `samples` is (first, last); None where the problem is
        not in a chunk.
    pending : bool
        Nothing is damaged: the rows were asked for and are not committed.
    """

    run: str
    what: str
    site: str | None = None
    layer: int | None = None
    shard: int | None = None
    samples: tuple[int, int] | None = None
    pending: bool = False

    def __str__(self) -> str:
        where = [self.run]
        if self.site is not None:
            where.append(self.site if self.layer is None else f"{self.site} {self.layer}")
        if self.shard is not None and self.samples is not None:
            where.append(f"shard {self.shard} (samples {self.samples[0]}…{self.samples[1]})")
        return f"{', '.join(where)}: {self.what}"


def presence_problems(
    backend: Backend, record: Record, journal: Journal, sizes: dict[str, dict[str, int]]
) -> list[Problem]:
    """Committed chunks and coordinate files that are missing or have the wrong size.

    Parameters
    ----------
    sizes : dict of str to {file name: bytes}
        Listing of each site's folder.
    """
    found = [_in_shard(record, s, None, k, what) for (s, k), what in journal.damaged.items()]
    for site in record.sites:
        entries = journal.entries[site]
        for layer, shard in np.argwhere(journal.committed(site)).tolist():
            size = sizes[site].get(chunk_name(layer, shard))
            nbytes = int(entries[layer, shard, 0])
            if size is None:
                found.append(_in_shard(record, site, layer, shard, "the chunk is missing"))
            elif size != nbytes:
                what = f"the chunk has {size:,} bytes instead of {nbytes:,}"
                found.append(_in_shard(record, site, layer, shard, what))
    for key, content in record.content.items():
        there = backend.sizes(f"{record.name}/{key}")
        names = ["zarr.json", *(f"c.{i}" for i in range(content.chunks))]
        lost = [name for name in names if name not in there]
        if lost:
            what = f"coordinate {key}: {', '.join(lost[:3])} missing"
            found.append(Problem(record.name, what))
    return found


def metadata_problems(backend: Backend, record: Record) -> list[Problem]:
    """Metadata files of groups and arrays whose bytes are not those that were written."""
    found = []
    for key, expected in group_files(record).items():
        if backend.get(key) != expected:
            what = "the store's zarr.json" if key == "zarr.json" else key
            found.append(Problem(record.name, f"{what} is not what was written"))
    for key, told in record.metadata.items():
        data = backend.get(f"{record.name}/{key}/zarr.json")
        if data is None or hashlib.sha256(data).hexdigest() != told:
            found.append(Problem(record.name, f"{key}/zarr.json is not what was written"))
    return found


def group_files(record: Record) -> dict[str, bytes]:
    """Group metadata around a run whose bytes are always the same."""
    return {
        "zarr.json": ROOT_GROUP,
        f"{record.model}/zarr.json": PLAIN_GROUP,
        f"{record.name}/{SEQUENCES}/zarr.json": PLAIN_GROUP,
        f"{record.name}/{JOURNAL}/zarr.json": PLAIN_GROUP,
    }


def chunk_problems(
    backend: Backend, record: Record, journal: Journal, shards: Collection[int] | None = None
) -> Iterator[Problem]:
    """Every committed chunk, of all shards or of some, read whole and compared with the journal."""
    wanted = [
        (site, layer, shard)
        for site in record.sites
        for layer, shard in np.argwhere(journal.committed(site)).tolist()
        if shards is None or shard in shards
    ]

    def check(at: tuple[str, int, int]) -> str | None:
        site, layer, shard = at
        try:
            data = backend.get(f"{record.name}/{site}/{chunk_name(layer, shard)}")
        except OSError as error:
            return f"the chunk cannot be read ({error})"
        return problem_with(data, *journal.entry(site, layer, shard))

    with ThreadPoolExecutor(4) as pool:
        for at, what in zip(wanted, pool.map(check, wanted), strict=True):
            if what is not None:
                yield _in_shard(record, *at, what)


def verify(backend: Backend, name: str, *, whole: bool = False) -> list[Problem]:
    """Every problem of a run, from the bytes on disk.

    Reads all of it: each chunk's checksum, the journal, every coordinate's hash and all
    metadata. An empty list means that every byte is the one that was written.

    Parameters
    ----------
    whole : bool
        Count as problems the shards, too, that were asked for and are not committed. An
        extraction that has not ended is no damage; but a journal that was lost looks the same.
    """
    while True:
        data = backend.get(f"{name}/zarr.json")
        found = _problems(backend, name, data, whole)
        if not found or backend.get(f"{name}/zarr.json") == data:
            return found


def _problems(backend: Backend, name: str, data: bytes | None, whole: bool) -> list[Problem]:
    """Every problem of the run whose record is in `data`."""
    if data is None:
        return [Problem(name, "the run's metadata (zarr.json) is missing")]
    try:
        record = Record.from_bytes(data, name)
    except (CorruptionError, StoreVersionError) as error:
        return [Problem(name, str(error).removeprefix(f"{name}: "))]
    if record is None:
        return [Problem(name, "the run's metadata (zarr.json) does not describe this run")]
    journal = Journal(backend, record)
    found = [_in_shard(record, s, None, k, what) for (s, k), what in journal.damaged.items()]
    found += metadata_problems(backend, record)
    found += chunk_problems(backend, record, journal)
    for key, content in record.content.items():
        what = column_problem(backend, f"{name}/{key}", content)
        if what is not None:
            found.append(Problem(name, f"coordinate {key}: {what}"))
    return found + (_uncommitted(record, journal) if whole else [])


def _uncommitted(record: Record, journal: Journal) -> list[Problem]:
    """Shards that were asked for and are not committed, one problem for a site and shard."""
    found = []
    for site, layers in record.wanted().items():
        lacking = ~journal.committed(site)[layers]
        for shard in np.flatnonzero(lacking.any(axis=0)).tolist():
            if (site, shard) not in journal.damaged:
                n = int(lacking[:, shard].sum())
                what = f"not committed ({count(n, record.sites[site].dim)})"
                found.append(replace(_in_shard(record, site, None, shard, what), pending=True))
    return found


def _in_shard(record: Record, site: str, layer: int | None, shard: int, what: str) -> Problem:
    start, stop = record.shard_range(shard)
    return Problem(record.name, what, site, layer, shard, (start, stop - 1))
