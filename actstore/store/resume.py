"""Going on with a run: the same key completes it, another key is refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from actstore.errors import CorruptionError
from actstore.store.arrays import add_request, later_arrays
from actstore.store.backend import Backend, backend_for, clear_partial, location, put_all
from actstore.store.codecs import check_same_codec
from actstore.store.folders import (
    check_root,
    clear_leftovers,
    clear_plan,
    commit_record,
    explained,
    lock_run,
    store_lock,
)
from actstore.store.layout import JOURNAL, check_label, chunk_name, journal_name, run_key
from actstore.store.lock import FolderLock, ShardLocks
from actstore.store.record import Record, SiteLike, check_key, load_record
from actstore.store.sharing import Share, join_run, lock_shards, preparing
from actstore.store.stored import StoredRun
from actstore.store.verify import Problem, chunk_problems, group_files
from actstore.store.writer import RunWriter


def resume_run(
    store: Any,
    model: str,
    corpus: str,
    *,
    key: Mapping[str, Any],
    wanted: Mapping[str, Sequence[int]],
    sites: Mapping[str, SiteLike],
    dtype: str,
    codec: str | None = None,
    check: Literal["exists", "full"] = "exists",
    share: Share | None = None,
) -> RunWriter | None:
    """A writer for what a run still lacks; None if there is no such run.

    An unfinished plan is cleared (by a writer of the whole run), and counts as no run. Sites and
    layers that the run does not have yet are added to it; its readers see them once they cover
    its rows. Chunks that are missing or bad become pending again.

    Parameters
    ----------
    store, model, corpus
        As for `create_run`.
    key : dict
        Must equal the stored run's.
    wanted, sites, dtype
        As for `RunBuilder.finish`.
    codec : str, optional
        Must be the stored run's, where it is given.
    check : {"exists", "full"}
        How committed chunks are checked: that they are there with their size, or every byte.
    share : Share, optional
        Write these shards only, beside writers of the other shares. In a store that is not local
        there are no locks: each share must have one writer.

    Raises
    ------
    KeyMismatchError
        Saying which entries differ; or the run has another codec.
    LockedError
        Another process is writing it, or one of the share's shards.
    CorruptionError
        Its record or coordinates are damaged: `actstore.repair` may make them again.
    """
    backend = backend_for(store)
    name = run_key(check_label("model", model), check_label("corpus", corpus))
    root = backend.get("zarr.json")
    if root is None:
        return None
    check_root(backend, root)
    if backend.get(f"{name}/zarr.json") is None and not backend.folders(name):
        return None
    with explained(f"{name} cannot be resumed in {location(backend)}", backend):
        lock = lock_run(backend, name) if share is None else join_run(backend, name)
        if lock is None:
            return None
        with ExitStack() as held:
            held.callback(lock.close)
            record = load_record(backend, name)
            if record is None:
                if share is None:
                    clear_plan(backend, name)
                return None
            request = {site: sorted({int(n) for n in layers}) for site, layers in wanted.items()}
            check_same_codec(name, record.codec, codec)
            prepared = _Preparation(backend, key, request, sites, dtype, check == "full")
            writer: RunWriter | None
            if share is None:
                clear_leftovers(backend, name)
                writer = prepared.writer(record, lock)
            else:
                with preparing(backend, name):
                    writer = prepared.shared(name, lock, share)
            held.pop_all()
            return writer


class _Preparation:
    """What is looked after before a run is gone on with."""

    def __init__(
        self,
        backend: Backend,
        key: Mapping[str, Any],
        request: dict[str, list[int]],
        sites: Mapping[str, SiteLike],
        dtype: str,
        full: bool,
    ) -> None:
        self._backend = backend
        self._key = key
        self._request = request
        self._sites = sites
        self._dtype = dtype
        self._full = full
        self._mended: list[str] = []

    def writer(self, record: Record, lock: FolderLock) -> RunWriter:
        """The writer of the whole run."""
        check_key(record, self._key, self._dtype)
        self._restore_metadata(record, whole=True)
        self._mended += _clear_bad(StoredRun(self._backend, record), None, full=self._full)
        record = self._extended(record, lock)
        return RunWriter(self._backend, record, self._request, lock, mended=self._mended)

    def shared(self, name: str, lock: FolderLock, share: Share) -> RunWriter | None:
        """The writer of a share; what others are writing is left alone."""
        record = load_record(self._backend, name)
        if record is None:
            return None
        check_key(record, self._key, self._dtype)
        self._restore_metadata(record, whole=False)
        shards = share.shards(record.n_shards)
        locks = lock_shards(self._backend, name, shards)
        try:
            clear_partial(self._backend, name, _files(record, shards))
            stored = StoredRun(self._backend, record)
            self._mended += _clear_bad(stored, set(shards), full=self._full)
            record, mended = self._extended(record, lock), self._mended
            return RunWriter(
                self._backend, record, self._request, lock, locks, shards=shards, mended=mended
            )
        except BaseException:
            locks.close()
            raise

    def _extended(self, record: Record, lock: FolderLock | ShardLocks) -> Record:
        """The record, with the request added where something of it is not there yet."""
        if self._request in record.requests:
            return record
        wider = add_request(self._backend, record, self._sites, self._request)
        if not RunWriter(self._backend, wider, self._request, lock).pending():
            return record
        commit_record(self._backend, wider)
        return wider

    def _restore_metadata(self, record: Record, *, whole: bool) -> None:
        """Write again what follows from the record, where it is not as it was."""
        backend = self._backend
        # Runs of other names have these groups too, and writers of their own.
        groups = group_files(record)
        above = {k: groups.pop(k) for k in ("zarr.json", f"{record.model}/zarr.json")}
        with store_lock(backend):
            above = {k: d for k, d in above.items() if backend.get(k) != d}
            put_all(backend, above)
        files = {k: d for k, d in groups.items() if backend.get(k) != d}
        if not whole:
            # Other writers hold locks on this very file.
            files.pop(f"{record.name}/{JOURNAL}/zarr.json", None)
        for name, site in record.sites.items():
            for key, data in later_arrays(record, name, site).items():
                path = f"{record.name}/{key}/zarr.json"
                if backend.get(path) != data and _sha256(data) == record.metadata[key]:
                    files[path] = data
        put_all(backend, files)
        self._mended += [f"{key} is written again" for key in {**above, **files}]


def _files(record: Record, shards: list[int]) -> set[str]:
    """Names of the files that belong to some shards."""
    sizes = {site.size for site in record.sites.values()}
    return {
        name
        for shard in shards
        for name in (
            journal_name(shard),
            *(chunk_name(n, shard) for n in range(max(sizes, default=0))),
        )
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _clear_bad(stored: StoredRun, only: Collection[int] | None, *, full: bool) -> list[str]:
    """Take bad chunks, of some shards or of all, out of the journal: they are pending again.

    Returns what was found, in words; shards that the journal does not know are among it.
    """
    told = [
        f"shard {shard} has chunks that are not in the journal "
        "(a writer was stopped, or it was lost)"
        for shard in stored.unentered()
        if (only is None or shard in only)
        and not any(problem.shard == shard for problem in stored.problems)
    ]
    problems: list[Problem] = list(stored.problems)
    if full:
        known = {(p.site, p.layer, p.shard) for p in problems}
        found = chunk_problems(stored.backend, stored.record, stored.journal, only)
        problems += [p for p in found if (p.site, p.layer, p.shard) not in known]
    lasting = [p for p in problems if p.site is None and p not in stored.metadata]
    if lasting:
        raise CorruptionError(
            f"{lasting[0]}; actstore.repair (on the command line: actstore repair) makes it again "
            "from the model and the text"
        )
    shards = sorted({p.shard for p in problems if p.shard is not None})
    for shard in shards:
        if only is not None and shard not in only:
            continue
        entries = {}
        for problem in problems:
            if problem.shard == shard and problem.site is not None:
                told.append(str(problem).removeprefix(f"{problem.run}, "))
                site = problem.site
                if site not in entries:
                    entries[site] = stored.journal.entries[site][:, shard].copy()
                if problem.layer is not None:
                    entries[site][problem.layer] = 0
        stored.journal.commit(shard, entries)
    return told
