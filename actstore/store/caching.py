"""What was computed from a run and is kept beside it: how much there is, and its removal."""

from __future__ import annotations

from collections.abc import Sequence

from actstore.errors import SelectionError
from actstore.store.backend import Backend
from actstore.store.layout import CACHE


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
