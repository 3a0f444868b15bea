"""The token ids that were run: read back by sequence number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import zarr

from actstore.errors import SelectionError
from actstore.store.backend import Backend
from actstore.store.layout import ITEM_CHUNK, SEQUENCES
from actstore.store.record import Record


class Sequences:
    """Token ids of a run's sequences, a few chunks in memory at a time."""

    def __init__(self, backend: Backend, record: Record) -> None:
        self._backend = backend
        self._name = record.name
        self._n = record.n_sequences
        self._start: np.ndarray | None = None
        self._chunk = lru_cache(maxsize=4)(self._read_chunk)

    def input_ids(self, numbers: np.ndarray) -> list[np.ndarray]:
        """One int32 array for each sequence number.

        Raises
        ------
        SelectionError
            A number that the run does not have.
        """
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self._n):
            wrong = int(numbers.min()) if numbers.min() < 0 else int(numbers.max())
            raise SelectionError(
                f"sequence {wrong} asked for, but {self._name} has sequences 0…{self._n - 1}"
            )
        if self._start is None:
            self._start = np.asarray(self._array("start")[:])
        return [self._items(int(self._start[n]), int(self._start[n + 1])) for n in numbers]

    def _items(self, start: int, stop: int) -> np.ndarray:
        parts = []
        while start < stop:
            chunk = start // ITEM_CHUNK
            end = min(stop, (chunk + 1) * ITEM_CHUNK)
            low = chunk * ITEM_CHUNK
            parts.append(self._chunk(chunk)[start - low : end - low])
            start = end
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _read_chunk(self, chunk: int) -> np.ndarray:
        low = chunk * ITEM_CHUNK
        return np.asarray(self._array("input_ids")[low : low + ITEM_CHUNK])

    def _array(self, name: str) -> zarr.Array:
        return zarr.open_array(
            self._backend.zarr, path=f"{self._name}/{SEQUENCES}/{name}", mode="r"
        )
