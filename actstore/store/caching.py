"""What was computed from a run and is kept beside it: how much there is, and its removal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import zarr

from actstore.errors import SelectionError, StoreError
from actstore.store.backend import Backend
from actstore.store.layout import CACHE, check_label

if TYPE_CHECKING:
    from actstore.store.stored import StoredRun


class Caching:
    """The part of a run that keeps what was computed from it."""

    stored: StoredRun

    def cache_group(self, name: str, *, create: bool = False) -> zarr.Group | None:
        """A Zarr group beside the run for what was computed from it.

        Parameters
        ----------
        name : str
            Letters, digits, ``.``, ``_`` and ``-``.
        create : bool
            Make it where it is not there; otherwise None is returned then.

        Raises
        ------
        StoreError
            It cannot be made.
        """
        path = f"{self.stored.record.name}/{CACHE}/{check_label('cache entry', name)}"
        backend = self.stored.backend
        if backend.get(f"{path}/zarr.json") is None and not create:
            return None
        try:
            return zarr.open_group(backend.zarr, path=path, mode="a" if create else "r+")
        except OSError as error:
            raise StoreError(f"{path} cannot be made: {error}") from error

    @property
    def cache(self) -> dict[str, int]:
        """Bytes on disk of each thing that was computed from the run and is kept beside it."""
        return cache_sizes(self.stored.backend, self.stored.record.name)

    def clear_cache(self, *names: str) -> int:
        """Remove what was computed from the run: it is computed again when it is needed.

        Not while it is in use: a computation that is under way loses its checkpoints, and a Gram
        larger than memory the blocks that it reads.

        Parameters
        ----------
        *names : str
            Keys of `cache`; all where none is given.

        Returns
        -------
        int
            Bytes that were freed.

        Raises
        ------
        SelectionError
            No entry of that name.
        """
        return remove_entries(self.stored.backend, self.stored.record.name, names)


def cache_sizes(backend: Backend, run: str) -> dict[str, int]:
    """Bytes of each entry in the cache of the run called ``model/corpus``."""
    place = f"{run}/{CACHE}"
    return {name: _size(backend, f"{place}/{name}") for name in backend.folders(place)}


def remove_entries(backend: Backend, run: str, names: Sequence[str]) -> int:
    """Remove entries, all where none is named; the bytes that they took.

    Raises
    ------
    SelectionError
        No entry of that name; nothing is removed.
    """
    sizes = cache_sizes(backend, run)
    for name in names:
        if name not in sizes:
            raise SelectionError(
                f"nothing called {name!r} in the cache of {run}; it has: "
                f"{', '.join(sizes) or 'nothing'}"
            )
    chosen = names or list(sizes)
    for name in chosen:
        # Without its metadata an entry no longer counts, however far the removal comes.
        backend.delete(f"{run}/{CACHE}/{name}/zarr.json")
        backend.delete_tree(f"{run}/{CACHE}/{name}")
    return sum(sizes[name] for name in dict.fromkeys(chosen))


def _size(backend: Backend, folder: str) -> int:
    inside = sum(_size(backend, f"{folder}/{name}") for name in backend.folders(folder))
    return inside + sum(backend.sizes(folder).values())
