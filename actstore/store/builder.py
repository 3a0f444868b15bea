"""The planning of a run: which samples there are, before any of them is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actstore.errors import ExistingRunError, StoreError
from actstore.store.arrays import add_request
from actstore.store.backend import Backend, backend_for, location, put_all
from actstore.store.codecs import DEFAULT, check_codec
from actstore.store.columns import ColumnWriter
from actstore.store.dtypes import stored_dtype
from actstore.store.folders import (
    clear_plan,
    commit_record,
    explained,
    lock_run,
    prepare,
)
from actstore.store.groups import PLAIN_GROUP
from actstore.store.layout import (
    COLUMN_CHUNK,
    ITEM_CHUNK,
    JOURNAL,
    SEQUENCES,
    check_column,
    check_label,
    run_key,
)
from actstore.store.layout import shard_rows as shard_rows_for
from actstore.store.lock import FolderLock
from actstore.store.record import Record, SiteLike, as_json, load_record, shared_axes
from actstore.store.writer import RunWriter
from actstore.wording import count


def create_run(store: Any, model: str, corpus: str) -> RunBuilder:
    """Begin a run: the store and its groups are made where they are not there yet.

    Parameters
    ----------
    store : str, path or zarr.abc.store.Store
    model, corpus : str
        Labels; letters, digits, ``.``, ``_`` and ``-``.

    Raises
    ------
    ExistingRunError
        A run of that name exists.
    StoreError
        The place holds something else.
    LockedError
        Another process is writing it.
    """
    backend = backend_for(store)
    name = run_key(check_label("model", model), check_label("corpus", corpus))
    with explained(f"{name} cannot be created in {location(backend)}", backend):
        prepare(backend, model)
        lock = lock_run(backend, name)
        try:
            if load_record(backend, name) is not None:
                raise ExistingRunError(
                    f"{name} exists in {location(backend)}: resume it, remove it first, or use "
                    "another name"
                )
            clear_plan(backend, name)
            put_all(
                backend,
                {
                    f"{name}/zarr.json": PLAIN_GROUP,
                    f"{name}/{SEQUENCES}/zarr.json": PLAIN_GROUP,
                    f"{name}/{JOURNAL}/zarr.json": PLAIN_GROUP,
                },
            )
            prepare(backend, model)  # it may have lost its last other run since
        except BaseException:
            lock.close()
            raise
    return RunBuilder(backend, model, corpus, lock)


class RunBuilder:
    """Streams the coordinates and token ids of a run to disk, in flat memory.

    As a context manager it removes an unfinished plan when left by an exception.
    """

    def __init__(self, backend: Backend, model: str, corpus: str, lock: FolderLock) -> None:
        self._backend = backend
        self._model = model
        self._corpus = corpus
        self._lock = lock
        self._name = run_key(model, corpus)
        self._columns: dict[str, ColumnWriter] = {}
        self._ids = self._column(f"{SEQUENCES}/input_ids", np.dtype("int32"), "item", ITEM_CHUNK)
        self._start = self._column(f"{SEQUENCES}/start", np.dtype("int64"), "bound")
        self._document = self._column(f"{SEQUENCES}/document", np.dtype("int64"), "sequence")
        self._start.append(np.zeros(1, np.int64))
        self._n_items = 0
        self.n_samples = 0
        self.n_sequences = 0

    def append(
        self,
        coords: Mapping[str, np.ndarray],
        input_ids: Sequence[np.ndarray],
        sequence_document: np.ndarray,
    ) -> None:
        """Add some samples and the sequences they are positions of.

        Parameters
        ----------
        coords : dict of str to (n,) array
            The same names at every call, ``sequence`` (number of the sequence in the whole
            run) and ``position`` among them.
        input_ids : list of int32 arrays
            The next sequences.
        sequence_document : (len(input_ids),) int64
            Document of each.
        """
        coords = {check_column(name): np.asarray(values) for name, values in coords.items()}
        lengths = {values.shape for values in coords.values()}
        if len(lengths) != 1 or not {"sequence", "position"} <= set(coords):
            raise StoreError(
                "coordinates must be one-dimensional, of one length, with 'sequence' and "
                f"'position' among them, not { {k: v.shape for k, v in coords.items()} }"
            )
        if self._columns and list(coords) != list(self._columns):
            raise StoreError(
                f"coordinates {list(coords)} after {list(self._columns)}: give the same names in "
                "the same order at every call"
            )
        if len(sequence_document) != len(input_ids):
            raise StoreError(
                f"{count(len(input_ids), 'sequence')}, but documents of {len(sequence_document)}"
            )
        lengths_of_ids = np.array([len(ids) for ids in input_ids], np.int64)
        self._check_positions(coords["sequence"], coords["position"], lengths_of_ids)
        with explained(f"the plan of {self._name} cannot be written", self._backend):
            for name, values in coords.items():
                if name not in self._columns:
                    self._columns[name] = self._column(name, values.dtype, "sample")
                self._columns[name].append(values)
            if len(input_ids):
                self._ids.append(np.concatenate([np.asarray(ids, np.int32) for ids in input_ids]))
                bounds = self._n_items + np.cumsum(lengths_of_ids)
                self._n_items = int(bounds[-1])
                self._start.append(bounds)
                self._document.append(np.asarray(sequence_document, np.int64))
        self.n_sequences += len(input_ids)
        self.n_samples += next(iter(lengths))[0]

    def finish(
        self,
        *,
        key: Mapping[str, Any],
        info: Mapping[str, Any],
        sites: Mapping[str, SiteLike],
        wanted: Mapping[str, Sequence[int]],
        dtype: str,
        codec: str = DEFAULT,
        shard_rows: int | None = None,
        reserve: bool = True,
    ) -> RunWriter:
        """Commit the plan and begin to write rows.

        Parameters
        ----------
        key : dict
            Plain JSON: everything the content follows from.
        info : dict
            Plain JSON: provenance beyond the key.
        sites : dict of str to SiteSpec
            Every site the model has; their sizes decide which share the plain axis names.
        wanted : dict of str to list of int
            Layers or blocks of each site to extract.
        dtype : str
            ``float32``, ``float16``, ``bfloat16`` or ``int8``.
        codec : str
            ``none`` or ``zstd``.
        shard_rows : int, optional
            Rows of a shard; by default about 1/32 of the run and chunks of at most 64 MB.
        reserve : bool
            Refuse where the disk has too little room for the rows (were none to be compressed).

        Raises
        ------
        StoreError
            No sample was planned, or the disk has too little room for the rows.
        """
        if self.n_samples == 0:
            raise StoreError(f"{self._name}: no sample was planned, so there is nothing to store")
        stored, codec = stored_dtype(dtype), check_codec(codec)
        unknown = [site for site in wanted if site not in sites]
        widest = max((sites[site].width for site in wanted if site not in unknown), default=1)
        rows = shard_rows or shard_rows_for(self.n_samples, widest * stored.disk.itemsize)
        with explained(f"the plan of {self._name} cannot be written", self._backend):
            columns = [*self._columns.values(), self._ids, self._start, self._document]
            prefix = len(self._name) + 1
            record = Record(
                model=self._model,
                corpus=self._corpus,
                key=as_json(key, "a run's key"),
                info=as_json(info, "a run's info"),
                dtype=dtype,
                n_samples=self.n_samples,
                n_sequences=self.n_sequences,
                shard_rows=min(int(rows), self.n_samples),
                axes=shared_axes(sites, {}),
                columns=list(self._columns),
                content={column.key[prefix:]: column.close() for column in columns},
                codec=codec,
            )
            record = add_request(self._backend, record, sites, wanted)
            writer = RunWriter(self._backend, record, record.requests[-1], self._lock)
            if reserve:
                writer.check_room()
            self._backend.sync_tree(self._name)
            commit_record(self._backend, record)
        return writer

    def close(self) -> None:
        """Give the plan up: what was written is removed and the lock released."""
        clear_plan(self._backend, self._name)
        self._lock.close()

    def __enter__(self) -> RunBuilder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and load_record(self._backend, self._name) is None:
            self.close()

    def _column(
        self, name: str, dtype: np.dtype, dim: str, chunk: int = COLUMN_CHUNK
    ) -> ColumnWriter:
        return ColumnWriter(self._backend, f"{self._name}/{name}", dtype, dim, chunk)

    def _check_positions(
        self, sequence: np.ndarray, position: np.ndarray, lengths: np.ndarray
    ) -> None:
        local = sequence - self.n_sequences
        if sequence.size and (local.min() < 0 or local.max() >= lengths.size):
            raise StoreError(
                f"sequences {sequence.min()}…{sequence.max()} in the coordinates, but the block "
                f"brings {self.n_sequences}…{self.n_sequences + lengths.size - 1}"
            )
        if np.any(position < 0) or np.any(position >= lengths[local]):
            at = int(np.flatnonzero((position < 0) | (position >= lengths[local]))[0])
            raise StoreError(
                f"position {position[at]} in sequence {sequence[at]}, which has "
                f"{count(int(lengths[local[at]]), 'token')}"
            )
