"""Folders of a store: made, locked, cleared and committed, with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

from actstore.errors import ActstoreError, StoreError
from actstore.store.backend import Backend, backend_for, clear_partial, location, put_all
from actstore.store.groups import PLAIN_GROUP, ROOT_GROUP, check_format, parse_group
from actstore.store.lock import FolderLock
from actstore.store.objects import remote_problem
from actstore.store.record import Record


def prepare(backend: Backend, model: str) -> None:
    """Make the store and a model's group, where they are not there yet.

    Raises
    ------
    StoreError
        The place holds something that is no actstore store.
    """
    root = backend.root
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
    with store_lock(backend):
        found = backend.get("zarr.json")
        if found is None:
            others = [n for n in backend.sizes("") if not n.endswith(".partial")]
            others += backend.folders("")
            if others:
                raise StoreError(
                    f"{location(backend)} is not an actstore store and not empty (it holds "
                    f"{others[0]!r}): give a new or empty folder"
                )
            put_all(backend, {"zarr.json": ROOT_GROUP})
            if root is not None:
                _sync_parent(root)
        else:
            check_root(backend, found)
            _put_back(backend, "zarr.json", found, ROOT_GROUP)
        found = backend.get(f"{model}/zarr.json")
        if found is None:
            put_all(backend, {f"{model}/zarr.json": PLAIN_GROUP})
            backend.sync_folder("")
        else:
            _put_back(backend, f"{model}/zarr.json", found, PLAIN_GROUP)


def _put_back(backend: Backend, key: str, found: bytes, expected: bytes) -> None:
    """Write a group's metadata again where another program has changed it: what it consolidated
    there would hide from zarr and xarray what is written later."""
    if found != expected:
        put_all(backend, {key: expected})
        warnings.warn(
            f"{key} of {location(backend)} had been written by another program, which can hide new "
            "runs from zarr and xarray: it is again as it was",
            stacklevel=3,
        )


def remove_empty(backend: Backend, model: str) -> None:
    """Remove the group of a model that has no runs left; what is left and gone is durable.

    A run that is begun meanwhile keeps it: its writer looks for the group after it has made the
    run's folder, and here the folders are looked for after the group is gone.
    """
    with store_lock(backend):
        if backend.folders(model):
            backend.sync_folder(model)
            return
        backend.delete(f"{model}/zarr.json")
        backend.remove_empty(model)
        if backend.folders(model):
            put_all(backend, {f"{model}/zarr.json": PLAIN_GROUP})
        backend.sync_folder("")


def check_root(backend: Backend, data: bytes) -> None:
    """StoreError or StoreVersionError unless `data` is the root of a store of this format."""
    where = location(backend)
    fields = parse_group(data, where).get("actstore")
    if fields is None:
        raise StoreError(f"{where} is a Zarr group, but not an actstore store")
    check_format(fields, where)


def store_lock(backend: Backend) -> FolderLock:
    """The lock under which what belongs to no single run is written; waits for its holder."""
    return FolderLock(backend.root, location(backend), wait=True)


def lock_run(backend: Backend, name: str) -> FolderLock:
    """The writer's lock on a run; LockedError where another writer has it."""
    root, what = backend.root, f"{name} in {location(backend)}"
    if root is None:
        return FolderLock(None, what)
    while True:
        # Who removes the run at this moment removes the folder too.
        with contextlib.suppress(FileNotFoundError):
            (root / name).mkdir(parents=True, exist_ok=True)
            return FolderLock(root / name, what)


def clear_plan(backend: Backend, name: str) -> None:
    """Remove what an unfinished plan left in a run's folder; the folder itself stays."""
    for folder in backend.folders(name):
        backend.delete_tree(f"{name}/{folder}")
    for file in backend.sizes(name):
        backend.delete(f"{name}/{file}")


def clear_leftovers(backend: Backend, name: str) -> None:
    """Remove half-written files of an interrupted writer."""
    clear_partial(backend, name)
    with store_lock(backend):
        for folder in ("", name.partition("/")[0]):
            for file in backend.sizes(folder):
                if file.endswith(".partial"):
                    backend.delete(f"{folder}/{file}" if folder else file)


def commit_record(backend: Backend, record: Record) -> None:
    """Write a run's record, after which the run exists for readers; durable on return."""
    put_all(backend, {f"{record.name}/zarr.json": record.to_bytes()})
    backend.sync_folder(record.model)


@contextlib.contextmanager
def explained(what: str, backend: Backend, safe: str = "") -> Iterator[None]:
    """Turn an operating system's error into a StoreError that says what ran out.

    Parameters
    ----------
    what : str
        What could not be done.
    safe : str
        What stays safe and how to go on.
    """
    try:
        yield
    except ActstoreError:
        raise
    except Exception as error:
        told = remote_problem(error)
        if told is not None:
            raise StoreError(f"{what}: {told}. {safe}".removesuffix(". ")) from error
        if not isinstance(error, OSError):
            raise
        reason = {
            errno.ENOSPC: f"the disk is full{_free(backend)}",
            errno.EDQUOT: "the disk quota is used up",
            errno.EFBIG: "a file-size limit was reached (ulimit -f)",
            errno.EACCES: "permission denied",
            errno.EPERM: "permission denied",
            errno.EROFS: "the file system is read-only",
            errno.EMFILE: "too many open files (ulimit -n)",
        }.get(error.errno or 0, error.strerror or str(error))
        path = f" at {error.filename}" if error.filename else ""
        raise StoreError(f"{what}: {reason}{path}{'. ' if safe else ''}{safe}") from error


def free_bytes(backend: Backend) -> int | None:
    """Bytes that may still be written where the store is; None where that is not known.

    The store's folder need not be there yet.
    """
    folder = backend.root
    while folder is not None:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
        folder = folder.parent if folder.parent != folder else None
    return None


def free_room(store: Any) -> int | None:
    """`free_bytes` where a store (path, URL or zarr Store) is or would be."""
    return free_bytes(backend_for(store))


def holds(store: Any, key: str) -> bool:
    """Whether a store (path, URL or zarr Store) has a file of that key."""
    return backend_for(store).size(key) is not None


def check_room(backend: Backend, nbytes: int, what: str) -> None:
    """StoreError where the disk has less room than `nbytes`."""
    free = free_bytes(backend)
    if free is not None and nbytes > free:
        raise StoreError(
            f"{what} needs {nbytes:,} bytes in {location(backend)}, but only {free:,} are free: "
            "make room, store fewer layers or samples, or a shorter dtype"
        )


def _free(backend: Backend) -> str:
    if backend.root is None:
        return ""
    with contextlib.suppress(OSError):
        return f" ({shutil.disk_usage(backend.root).free / 1e6:,.1f} MB free)"
    return ""


def _sync_parent(root: os.PathLike[str]) -> None:
    descriptor = os.open(os.path.dirname(root), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
