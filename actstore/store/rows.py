"""A choice of samples, kept shard by shard and always in increasing order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actstore.errors import SelectionError


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows in view, all of one shard.

    Attributes
    ----------
    shard : int
    rows : slice or (n,) int64
        Sample numbers in the whole run.
    out : slice
        Where the rows stand in the view.
    """

    shard: int
    rows: slice | np.ndarray
    out: slice


class Rows:
    """Increasing sample numbers, grouped by shard.

    Parameters
    ----------
    pieces : sequence of (shard, slice or int64 array)
        Global sample numbers of each shard; shards increase, no piece is empty.
    """

    def __init__(self, pieces: Sequence[tuple[int, slice | np.ndarray]]) -> None:
        self.pieces = [(shard, index) for shard, index in pieces if length(index)]
        lengths = [length(index) for _, index in self.pieces]
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.n = int(self.offsets[-1])

    def numbers(self) -> np.ndarray:
        """(n,) int64 sample numbers in the whole run."""
        parts = [np.arange(i.start, i.stop) if isinstance(i, slice) else i for _, i in self.pieces]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def lengths(self) -> tuple[int, ...]:
        """Rows of each piece."""
        return tuple(int(n) for n in np.diff(self.offsets))

    def between(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop` of the view."""
        chosen = []
        first = max(int(np.searchsorted(self.offsets, start, side="right")) - 1, 0)
        for at in range(first, len(self.pieces)):
            shard, index = self.pieces[at]
            low, high = int(self.offsets[at]), int(self.offsets[at + 1])
            if low >= stop:
                break
            chosen.append((shard, _cut(index, max(start - low, 0), min(stop, high) - low)))
        return Rows(chosen)

    def take(self, numbers: np.ndarray) -> Rows:
        """Rows of the view by increasing number.

        Raises
        ------
        SelectionError
            A number outside the view, or an order that is not increasing.
        """
        numbers = np.asarray(numbers, np.int64)
        if numbers.size == 0:
            return Rows([])
        if numbers[0] < 0 or numbers[-1] >= self.n or np.any(np.diff(numbers) <= 0):
            low, high = int(numbers.min()), int(numbers.max())
            if low < 0 or high >= self.n:
                outside = low if low < 0 else high
                raise SelectionError(
                    f"sample {outside} asked for, but the run in view has samples 0…{self.n - 1}"
                )
            raise SelectionError(
                "a run keeps its samples in increasing order, each once: sort the numbers, or use "
                "run['resid'].isel(sample=...) for another order"
            )
        cuts = np.searchsorted(numbers, self.offsets)
        chosen: list[tuple[int, slice | np.ndarray]] = []
        for at, (shard, index) in enumerate(self.pieces):
            local = numbers[cuts[at] : cuts[at + 1]] - self.offsets[at]
            if local.size:
                found = local + index.start if isinstance(index, slice) else index[local]
                chosen.append((shard, _tidy(found)))
        return Rows(chosen)

    def blocks(self, max_rows: int) -> list[RowBlock]:
        """Blocks of at most `max_rows` rows, none across two shards."""
        blocks = []
        for at, (shard, index) in enumerate(self.pieces):
            low, n = int(self.offsets[at]), length(index)
            for start in range(0, n, max_rows):
                stop = min(start + max_rows, n)
                out = slice(low + start, low + stop)
                blocks.append(RowBlock(shard, _cut(index, start, stop), out))
        return blocks

    def digest(self) -> str:
        """SHA-256 of the choice."""
        total = hashlib.sha256()
        for _, index in self.pieces:
            if isinstance(index, slice):
                total.update(b"slice" + np.array([index.start, index.stop], "<i8").tobytes())
            else:
                total.update(b"array" + index.astype("<i8").tobytes())
        return total.hexdigest()


def length(index: slice | np.ndarray) -> int:
    """How many rows a slice (start and stop given) or an array of numbers stands for."""
    return max(index.stop - index.start, 0) if isinstance(index, slice) else int(index.size)


def _cut(index: slice | np.ndarray, start: int, stop: int) -> slice | np.ndarray:
    if isinstance(index, slice):
        return slice(index.start + start, index.start + stop)
    return _tidy(index[start:stop])


def _tidy(numbers: np.ndarray) -> slice | np.ndarray:
    """A slice where the numbers follow each other: it reads faster and stores as two."""
    if numbers.size and int(numbers[-1] - numbers[0]) + 1 == numbers.size:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
