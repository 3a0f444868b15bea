"""The order of an epoch: which rows each batch holds, known without reading any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Pool:
    """Consecutive rows of the epoch that are shuffled together.

    Attributes
    ----------
    lane, number : int
        The lane it is of, and its place there.
    start, stop : int
        Its rows, as places among all rows of the epoch.
    """

    lane: int
    number: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one chunk.

    Attributes
    ----------
    unit : int
        Number of the chunk.
    start, stop : int
        Rows inside it.
    at : int
        Where the first of them stands in the pool.
    """

    unit: int
    start: int
    stop: int
    at: int


class EpochOrder:
    """Every row once, in batches, in an order that follows from the parameters alone.

    The chunks are put in random order, one after the other; what they hold is dealt out in
    consecutive stretches to the lanes; each lane is cut into pools, the rows of a pool are put
    in random order and cut into batches. Batches of the epoch come from the lanes in turn. So
    any batch can be told from its number, after reading one pool.

    Parameters
    ----------
    lengths : sequence of int
        Rows of each chunk.
    batch_size : int
        Rows of every batch but the last.
    buffer : int
        Rows of a pool, at least `batch_size`; rounded down to whole batches.
    lanes : int
    shuffle : bool
        Otherwise everything keeps its order, and there is one lane.
    seed, epoch : int
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int,
        buffer: int,
        lanes: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        self._batch = batch_size
        self._rows = buffer // batch_size * batch_size
        self._seeds = (seed, epoch) if shuffle else None
        n_units = len(lengths)
        self._units = self._generator().permutation(n_units) if shuffle else np.arange(n_units)
        self._ends = np.cumsum(np.asarray(lengths, np.int64)[self._units])
        n_rows = int(self._ends[-1]) if n_units else 0
        self.n_batches = -(-n_rows // batch_size)
        self.lanes = lanes
        batches = [len(range(lane, self.n_batches, lanes)) for lane in range(lanes)]
        sizes = np.array(batches, np.int64) * batch_size
        if self.n_batches:
            sizes[(self.n_batches - 1) % lanes] -= self.n_batches * batch_size - n_rows
        self._stops = np.cumsum(sizes)
        self._starts = self._stops - sizes

    def pool(self, batch: int) -> Pool:
        """The pool that a batch is in."""
        lane, number = batch % self.lanes, batch // self.lanes * self._batch // self._rows
        start = int(self._starts[lane]) + number * self._rows
        return Pool(lane, number, start, min(start + self._rows, int(self._stops[lane])))

    def in_turn(self, batches: range) -> Iterator[Pool]:
        """The pools of some batches, in the order of their first use."""
        latest: dict[int, Pool] = {}
        for number in batches:
            pool = self.pool(number)
            if latest.get(pool.lane) != pool:
                latest[pool.lane] = pool
                yield pool

    def within(self, batch: int) -> slice:
        """Which of its pool's rows, in the pool's own order, a batch is."""
        pool = self.pool(batch)
        start = batch // self.lanes * self._batch - pool.number * self._rows
        return slice(start, min(start + self._batch, len(pool)))

    def pieces(self, pool: Pool) -> Iterator[Piece]:
        """What a pool is read from."""
        at = pool.start
        number = int(np.searchsorted(self._ends, at, side="right"))
        while at < pool.stop:
            first = int(self._ends[number - 1]) if number else 0
            stop = min(int(self._ends[number]), pool.stop)
            if stop > at:
                yield Piece(int(self._units[number]), at - first, stop - first, at - pool.start)
            at, number = stop, number + 1

    def permutation(self, pool: Pool) -> np.ndarray:
        """(rows of the pool,) int64: their order."""
        if self._seeds is None:
            return np.arange(len(pool))
        return self._generator(pool.lane, pool.number).permutation(len(pool))

    def _generator(self, *place: int) -> np.random.Generator:
        # A key of every part's own length: no pool shares its stream with the chunks' order.
        return np.random.default_rng([len(place), *(self._seeds or ()), *place])
