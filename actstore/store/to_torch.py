"""Shuffled minibatches of a run as a torch dataset; imported by `Run.to_torch`, never with a store.

Chunks are read whole and in random order, and their rows shuffled in memory: rows read one by
one would come many times slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from actstore.errors import SelectionError, StoreError
from actstore.store.shuffling import EpochOrder, Pool

if TYPE_CHECKING:
    from actstore.store.run import Run

Batch = dict[str, Any]

POOL_BYTES = 256 * 2**20
OWN = ("activations", "layer", "row", "sample")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A pool in memory."""

    pool: Pool
    states: np.ndarray
    """(layers, rows, width)"""
    rows: np.ndarray
    """Place of each in the run."""
    layers: np.ndarray | None
    """Layer of each, where they are mixed."""
    order: np.ndarray


class Minibatches(IterableDataset[Batch]):
    """Minibatches of a run's rows, made by `Run.to_torch`, which says what is in them.

    ``for batch in data`` is one epoch, or what is left of it after `load_state_dict`; the next
    one is the same again unless `set_epoch` chooses another. For worker processes give it to
    ``torch.utils.data.DataLoader(data, batch_size=None, num_workers=…)``: batches come in the
    same order as without. It pickles as a description of the run, without its rows.

    Attributes
    ----------
    batch : int
        How many batches of the epoch this process has given out.
    """

    def __init__(
        self,
        run: Run,
        site: str,
        layers: Any,
        *,
        mixed: bool,
        batch_size: int,
        shuffle: bool,
        buffer: int | None,
        lanes: int,
        seed: int,
        epoch: int,
        dtype: Any,
        coordinates: Sequence[str],
        drop_last: bool,
    ) -> None:
        view = run.sel(site=site)
        if layers is not None:
            view = view.sel(**{view.dim(site): layers})
        self.run, self.site, self.layers = view, site, list(view.sites[site])
        self._alone = np.ndim(layers) == 0 and not isinstance(layers, slice | None)
        self._mixed, self._drop_last, self._coordinates = mixed, drop_last, tuple(coordinates)
        self._memory = view.stored.record.stored.memory
        self._dtype = _torch_dtype(dtype, self._memory)
        for name in self._coordinates:
            view.coordinate(name)
            if name in OWN:
                raise SelectionError(f"a batch has a {name!r} of its own: it names no coordinate")
        batch_size = _whole("batch_size", batch_size, 1)
        if buffer is None:
            held = 1 if mixed else len(self.layers)
            row_bytes = held * view.width(site) * self._memory.itemsize
            buffer = max(POOL_BYTES // row_bytes, batch_size)
        if _whole("buffer", buffer, 1) < batch_size:
            raise SelectionError(
                f"buffer={buffer} rows are fewer than batch_size={batch_size}: a buffer holds at "
                "least one batch"
            )
        if _whole("lanes", lanes, 1) > 1 and not shuffle:
            raise SelectionError(f"lanes={lanes} are for shuffle=True; otherwise there is one")
        self._settings: dict[str, Any] = {
            "batch_size": batch_size,
            "buffer": int(buffer),
            "lanes": int(lanes),
            "shuffle": bool(shuffle),
            "seed": _whole("seed", seed, 0),
        }
        self.batch = 0
        # Shared with worker processes: those that live on learn of another epoch.
        self._place = torch.tensor([_whole("epoch", epoch, 0), 0]).share_memory_()
        self._home = os.getpid()
        # Pools' memory, for the next epoch: the first touch of new pages can cost more than a read.
        self._spare: list[np.ndarray] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spare": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._home = os.getpid()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value}" for name, value in self._settings.items())
        return (
            f"<Minibatches of {self.run.name} {self.site}: {len(self.layers)} layers, "
            f"{self.run.n_samples:,} samples, {len(self):,} batches an epoch, {parts}>"
        )

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        n_rows = self.run.n_samples * (len(self.layers) if self._mixed else 1)
        size = self._settings["batch_size"]
        return n_rows // size if self._drop_last else -(-n_rows // size)

    @property
    def epoch(self) -> int:
        """The epoch that an iteration goes through."""
        return int(self._place[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, whose order is its own; another one than now starts at its begin."""
        if _whole("epoch", epoch, 0) != self.epoch:
            self._go_to(epoch, 0)

    def state_dict(self, batch: int | None = None) -> dict[str, Any]:
        """Where training stands, as JSON types.

        Parameters
        ----------
        batch : int, optional
            Batches of this epoch that were used. Worker processes read ahead of what was used
            and do not tell, so count them where there are workers. Default: those that this
            process has iterated over.
        """
        used = self.batch if batch is None else _whole("batch", batch, 0)
        return {"epoch": self.epoch, "batch": used, "order": self._describe()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the next iteration starts there.

        Raises
        ------
        SelectionError
            It is of other rows, or of another order of them.
        """
        mine, theirs = self._describe(), dict(state["order"])
        differ = [name for name in mine if mine[name] != theirs.get(name)]
        if differ:
            told = ", ".join(f"{n} {theirs.get(n)!r} there and {mine[n]!r} here" for n in differ)
            raise SelectionError(f"the position is of another order: {told}")
        self._go_to(int(state["epoch"]), int(state["batch"]))

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        backend = self.run.stored.backend
        if os.getpid() != self._home and "://" in backend.name:
            raise StoreError(
                f"{backend.name} cannot be read after a fork, which its connections do not "
                "survive: give the DataLoader multiprocessing_context='spawn'"
            )
        self.batch = int(self._place[1])
        if info is None:
            self._place[1] = 0
        return self._batches(range(self.batch + worker, len(self), workers))

    def _batches(self, numbers: range) -> Iterator[Batch]:
        columns = {name: self.run.coordinate(name) for name in self._coordinates}
        sample_numbers = self.run.rows.numbers()
        order = self._order()
        wanted = order.in_turn(numbers)
        held: dict[int, _Loaded] = {}
        coming: Future[_Loaded] | None = None
        try:
            with ThreadPoolExecutor(1, "actstore-shuffle") as reader:

                def ahead() -> Future[_Loaded] | None:
                    pool = next(wanted, None)
                    return None if pool is None else reader.submit(self._load, order, pool)

                coming = ahead()
                for number in numbers:
                    pool = order.pool(number)
                    before = held.get(pool.lane)
                    if before is None or before.pool != pool:
                        assert coming is not None
                        held[pool.lane], coming = coming.result(), None
                        if before is not None:
                            self._keep(before)
                        coming = ahead()
                    loaded = held[pool.lane]
                    chosen = loaded.order[order.within(number)]
                    self.batch = number + 1
                    yield self._batch_of(loaded, chosen, sample_numbers, columns)
        finally:
            for one in held.values():
                self._keep(one)
            if coming is not None and not coming.cancelled() and coming.exception() is None:
                self._keep(coming.result())

    def _keep(self, used_up: _Loaded) -> None:
        """Its memory is for the pools to come, of which two are held with one lane."""
        if used_up.states.base is not None and len(self._spare) <= self._settings["lanes"]:
            self._spare.append(used_up.states.base)

    def _batch_of(
        self,
        loaded: _Loaded,
        chosen: np.ndarray,
        sample_numbers: np.ndarray,
        columns: Mapping[str, np.ndarray],
    ) -> Batch:
        n_layers, _, width = loaded.states.shape
        states = torch.empty((n_layers, len(chosen), width), dtype=_torch_dtype(None, self._memory))
        for one, out in zip(loaded.states, states.numpy(), strict=True):
            # By one thread: torch's own would wait for each other where cores are taken.
            np.take(one, chosen, axis=0, out=out, mode="clip")
        if self._mixed or self._alone:
            states = states[0]
        rows = loaded.rows[chosen]
        layers = np.array(self.layers) if loaded.layers is None else loaded.layers[chosen]
        return {
            "activations": states.to(self._dtype),
            "layer": torch.from_numpy(layers.astype(np.int64)),
            "row": torch.from_numpy(rows),
            "sample": torch.from_numpy(sample_numbers[rows]),
            **{name: _column(values[rows]) for name, values in columns.items()},
        }

    def _load(self, order: EpochOrder, pool: Pool) -> _Loaded:
        """Read a pool, into memory of one that is used up where it fits."""
        held = [None] if self._mixed else self.layers
        shape = (len(held), len(pool), self.run.width(self.site))
        size = int(np.prod(shape))
        try:
            memory = self._spare.pop()  # in one step: several iterations may go on at a time
        except IndexError:
            memory = np.empty(0, self._memory)
        if memory.size < size:
            memory = np.empty(size, self._memory)
        states = memory[:size].reshape(shape)
        rows = np.empty(len(pool), np.int64)
        layers = np.empty(len(pool), np.int64) if self._mixed else None
        starts, n_chunks = self.run.rows.offsets, len(self.run.rows.pieces)
        for piece in order.pieces(pool):
            number, chunk = divmod(piece.unit, n_chunks)
            place = slice(piece.at, piece.at + piece.stop - piece.start)
            first = int(starts[chunk])
            rows[place] = np.arange(first + piece.start, first + piece.stop)
            if layers is not None:
                layers[place] = self.layers[number]
            part = self.run.rows.between(first + piece.start, first + piece.stop)
            (block,) = part.blocks(part.n)
            for layer, out in zip(held, states, strict=True):
                which = self.layers[number] if layer is None else layer
                self.run.read(self.site, which, block, out=out[place])
        return _Loaded(pool, states, rows, layers, order.permutation(pool))

    def _order(self) -> EpochOrder:
        lengths = self.run.rows.lengths() * (len(self.layers) if self._mixed else 1)
        return EpochOrder(lengths, epoch=self.epoch, **self._settings)

    def _go_to(self, epoch: int, batch: int) -> None:
        self._place[0], self._place[1], self.batch = epoch, batch, batch

    def _describe(self) -> dict[str, Any]:
        """All that the order and the numbers of the batches follow from."""
        return {
            "run": self.run.key(),
            "site": self.site,
            "layers": self.layers,
            "mixed": self._mixed,
            **self._settings,
        }


def _column(values: np.ndarray) -> Any:
    return torch.from_numpy(values) if values.dtype.kind in "iufb" else values.tolist()


def _torch_dtype(dtype: Any, memory: np.dtype[Any]) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None:
        found = torch.float16 if memory == np.float16 else torch.float32
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise SelectionError(
            f"dtype={dtype!r} is not a floating-point dtype of torch, such as 'float32' or "
            "torch.bfloat16"
        )
    return found


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = -1
    if number < least:
        raise SelectionError(f"{name}={value!r}: a whole number is needed, at least {least}")
    return number
