"""Bytes by key, on a local folder or on any Zarr store, and what makes them durable.

A key is a path below the store's root, such as ``gpt2/wiki/resid/c.3.0.0``. On a local
folder every file is written beside its place, flushed to the disk and renamed, so a
reader or a power cut sees the old bytes or the new ones, never a mixture.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
from zarr.abc.store import Store as ZarrStore
from zarr.storage import LocalStore

from actstore.errors import StoreError
from actstore.store.layout import CACHE
from actstore.store.objects import ZarrBackend, remote_store

PARTIAL = ".partial"
"""Suffix of files that are being written; zarr's own local store uses the same one."""

_ATTEMPTS = 5


class Backend(Protocol):
    """What the store needs of a place that keeps bytes."""

    zarr: ZarrStore
    name: str

    @property
    def root(self) -> Path | None:
        """Folder of a local store; None for any other."""

    def get(self, key: str) -> bytes | None:
        """Bytes under `key`; None where there are none."""

    def put(self, key: str, data: bytes | np.ndarray) -> None:
        """Replace the bytes under `key` at once; on a local folder they are on the disk."""

    def copy(self, source: str, target: str) -> None:
        """Put the bytes under one key under another too."""

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None where there is nothing."""

    def sync_folder(self, key: str) -> None:
        """Make the names in a folder durable."""

    def sync_tree(self, key: str) -> None:
        """Make every file and name below a folder durable."""

    def delete(self, key: str) -> None:
        """Remove one key, if it is there."""

    def delete_tree(self, key: str) -> None:
        """Remove everything below a folder, if it is there."""

    def remove_empty(self, key: str) -> None:
        """Remove a folder, if it is there and nothing is in it."""

    def move_tree(self, source: str, target: str) -> None:
        """Rename a folder."""

    def sizes(self, key: str) -> dict[str, int]:
        """Names and sizes in bytes of the files directly in a folder."""

    def folders(self, key: str) -> list[str]:
        """Sorted names of the folders directly in a folder."""


class LocalBackend:
    """A folder on a file system of this machine."""

    def __init__(self, store: LocalStore) -> None:
        self.zarr: ZarrStore = store
        self._root = Path(store.root)
        self.name = str(self._root)

    @property
    def root(self) -> Path | None:
        return self._root

    def path(self, key: str) -> Path:
        return self._root / key if key else self._root

    def get(self, key: str) -> bytes | None:
        try:
            return self.path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def put(self, key: str, data: bytes | np.ndarray) -> None:
        path = self.path(key)
        _make_folder(path.parent)
        partial = path.with_name(path.name + PARTIAL)
        try:
            with open(partial, "wb", buffering=0) as file:
                view = _view(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    def copy(self, source: str, target: str) -> None:
        path = self.path(target)
        _make_folder(path.parent)
        try:
            path.unlink(missing_ok=True)
            os.link(self.path(source), path)
        except OSError:  # a file system without links
            self.put(target, self.path(source).read_bytes())

    def size(self, key: str) -> int | None:
        try:
            return self.path(key).stat().st_size
        except FileNotFoundError:
            return None

    def sync_folder(self, key: str) -> None:
        _fsync(self.path(key))

    def sync_tree(self, key: str) -> None:
        for folder, _, files in os.walk(self.path(key)):
            for name in files:
                with contextlib.suppress(FileNotFoundError):  # renamed by another writer
                    _fsync(Path(folder, name))
            _fsync(Path(folder))

    def delete(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)

    def delete_tree(self, key: str) -> None:
        path = self.path(key)
        for attempt in range(_ATTEMPTS):
            try:
                shutil.rmtree(path)
            except OSError:
                # What another process removes or adds meanwhile stops the removal half-way.
                if path.exists() and attempt == _ATTEMPTS - 1:
                    raise
            if not path.exists():
                return

    def remove_empty(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self.path(key).rmdir()

    def move_tree(self, source: str, target: str) -> None:
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.path(source), self.path(target))

    def sizes(self, key: str) -> dict[str, int]:
        found = {}
        with _scan(self.path(key)) as entries:
            for entry in entries:
                # Another writer renames its partial files and removes them meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def folders(self, key: str) -> list[str]:
        with _scan(self.path(key)) as entries:
            return sorted(e.name for e in entries if e.is_dir())

    def clear_partial(self, key: str, names: Collection[str] | None, spared: str) -> None:
        """Remove what an interrupted write left below a folder, but for one folder in it."""
        top = self.path(key)
        for folder, folders, files in os.walk(top):
            if folder == str(top) and spared in folders:
                folders.remove(spared)
            for name in files:
                if name.endswith(PARTIAL) and (names is None or name[: -len(PARTIAL)] in names):
                    Path(folder, name).unlink(missing_ok=True)


def backend_for(store: str | os.PathLike[str] | ZarrStore) -> Backend:
    """Backend of a path, a URL or a Zarr store.

    Raises
    ------
    MissingDependencyError
        For a remote URL without the ``cloud`` extra.
    StoreError
        For something that is none of the three.
    """
    if isinstance(store, LocalStore):
        return LocalBackend(store)
    if isinstance(store, ZarrStore):
        return ZarrBackend(store)
    if isinstance(store, os.PathLike):
        return LocalBackend(LocalStore(Path(store).absolute()))
    if not isinstance(store, str) or not store:
        raise StoreError(
            f"{store!r} is not a store: give a path, a URL, or a Zarr store such as "
            "zarr.storage.MemoryStore()"
        )
    if "://" not in store:
        return LocalBackend(LocalStore(Path(store).expanduser().absolute()))
    if store.startswith("file://"):
        return LocalBackend(LocalStore(Path(unquote(urlsplit(store).path)).absolute()))
    return ZarrBackend(remote_store(store), store)


def location(backend: Backend) -> str:
    """Where a store is, in words for a message or a table's title."""
    return backend.name


def clear_partial(backend: Backend, run: str, names: Collection[str] | None = None) -> None:
    """Remove what an interrupted write of these names, or of any, left in a run's folder.

    The cache is spared: who computes something from the run does not hold the writer's lock.
    """
    if isinstance(backend, LocalBackend):
        backend.clear_partial(run, names, CACHE)


@contextlib.contextmanager
def _scan(path: Path) -> Iterator[Any]:
    try:
        entries = os.scandir(path)
    except (FileNotFoundError, NotADirectoryError):
        yield ()
        return
    with entries:
        yield entries


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, each of whose names is then on the disk."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _fsync(path.parent)


def _view(data: bytes | np.ndarray) -> memoryview:
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_all(backend: Backend, items: Mapping[str, bytes | np.ndarray]) -> None:
    """Write several keys and make their names durable."""
    for key, data in items.items():
        backend.put(key, data)
    for folder in {key.rpartition("/")[0] for key in items}:
        backend.sync_folder(folder)
