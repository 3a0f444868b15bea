"""Going on with a run: the same key completes it, another key is refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from actstore.errors import CorruptionError, KeyMismatchError
from actstore.store.arrays import add_request, later_arrays
from actstore.store.backend import Backend, backend_for, location, put_all
from actstore.store.folders import (
    check_root,
    clear_leftovers,
    clear_plan,
    commit_record,
    explained,
    lock_run,
)
from actstore.store.layout import check_label, run_key
from actstore.store.record import Record, SiteLike
from actstore.store.stored import StoredRun, load_record
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
    check: Literal["exists", "full"] = "exists",
) -> RunWriter | None:
    """A writer for what a run still lacks; None if there is no such run.

    An unfinished plan is cleared, and counts as no run. Sites and layers that the run does
    not have yet are added to it; its readers see them once they cover its rows. Chunks that
    are missing or bad become pending again.

    Parameters
    ----------
    key : dict
        Must equal the stored run's.
    wanted, sites, dtype
        As for `RunBuilder.finish`.
    check : {"exists", "full"}
        How committed chunks are checked: that they are there with their size, or every byte.

    Raises
    ------
    KeyMismatchError
        Saying which entries differ.
    LockedError
        Another process is writing it.
    CorruptionError
        Its record or coordinates are damaged, which only a copy can restore.
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
        lock = lock_run(backend, name)
        try:
            record = load_record(backend, name)
            if record is None:
                clear_plan(backend, name)
                lock.close()
                return None
            _check_key(record, key, dtype)
            clear_leftovers(backend, name)
            _restore_metadata(backend, record)
            _clear_bad(StoredRun(backend, record), full=check == "full")
            request = {site: sorted({int(n) for n in layers}) for site, layers in wanted.items()}
            if request not in record.requests:
                wider = add_request(backend, record, sites, request)
                if RunWriter(backend, wider, request, lock).pending():
                    record = wider
                    commit_record(backend, record)
            return RunWriter(backend, record, request, lock)
        except BaseException:
            lock.close()
            raise


def _check_key(record: Record, key: Mapping[str, Any], dtype: str) -> None:
    differences = record.key_differences(key, dtype)
    if differences:
        more = len(differences) - 4
        shown = "; ".join(differences[:4]) + (f"; and {more} more" if more > 0 else "")
        raise KeyMismatchError(
            f"{record.name} exists, but was made from something else: {shown}. Use another name "
            "(model_name=, corpus_name=), or remove the run first"
        )


def _restore_metadata(backend: Backend, record: Record) -> None:
    """Write again what follows from the record, where it is not as it was."""
    files = {k: d for k, d in group_files(record).items() if backend.get(k) != d}
    for name, site in record.sites.items():
        for key, data in later_arrays(record, name, site).items():
            path = f"{record.name}/{key}/zarr.json"
            if backend.get(path) != data and _sha256(data) == record.metadata[key]:
                files[path] = data
    put_all(backend, files)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _clear_bad(stored: StoredRun, *, full: bool) -> None:
    """Take bad chunks out of the journal, so that they are pending again."""
    problems: list[Problem] = list(stored.problems)
    if full:
        known = {(p.site, p.layer, p.shard) for p in problems}
        found = chunk_problems(stored.backend, stored.record, stored.journal)
        problems += [p for p in found if (p.site, p.layer, p.shard) not in known]
    lasting = [p for p in problems if p.site is None]
    if lasting:
        raise CorruptionError(
            f"{lasting[0]}; this cannot be recomputed: restore it from a copy, or remove the run "
            "and extract it again"
        )
    shards = sorted({p.shard for p in problems if p.shard is not None})
    for shard in shards:
        entries = {}
        for problem in problems:
            if problem.shard == shard and problem.site is not None:
                site = problem.site
                if site not in entries:
                    entries[site] = stored.journal.entries[site][:, shard].copy()
                if problem.layer is not None:
                    entries[site][problem.layer] = 0
        stored.journal.commit(shard, entries)
