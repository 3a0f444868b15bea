"""Coordinate arrays: streamed to disk in flat memory, read back with proof of their bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from actstore.errors import CorruptionError, StoreError
from actstore.store.backend import Backend
from actstore.store.record import Content


class ColumnWriter:
    """A one-dimensional array that grows by appending and is written chunk by chunk.

    Parameters
    ----------
    backend : Backend
    key : str
        Where the array goes.
    dtype : numpy.dtype
        Any integer, float or bool; everything else is stored as strings.
    dim : str
        Name of its dimension.
    chunk : int
        Items of a chunk; at most two chunks are held in memory.
    """

    def __init__(self, backend: Backend, key: str, dtype: np.dtype, dim: str, chunk: int) -> None:
        self._backend = backend
        self.key = key
        self.length = 0
        self._text = dtype.kind not in "iufb"
        self._dtype = dtype
        self._chunk = chunk
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0
        self._array = create_column(backend, key, (0,), str if self._text else dtype, dim, chunk)

    def append(self, values: np.ndarray) -> None:
        """Add values; those that fill a chunk are written."""
        values = np.asarray(values)
        if values.ndim != 1 or (values.dtype.kind not in "iufb") != self._text:
            raise StoreError(
                f"coordinate {self.key.rpartition('/')[2]!r} got {values.dtype} of shape "
                f"{values.shape} after {self._dtype}: each must be one-dimensional and of one kind"
            )
        if not self._text and not np.can_cast(values.dtype, self._dtype, "same_kind"):
            raise StoreError(
                f"coordinate {self.key.rpartition('/')[2]!r} was {self._dtype} and now is "
                f"{values.dtype}: give every block the same dtype"
            )
        self._waiting.append(values.astype(object if self._text else self._dtype))
        self._n_waiting += values.size
        if self._n_waiting >= self._chunk:
            self._flush(self._n_waiting // self._chunk * self._chunk)

    def close(self) -> Content:
        """Write what is left; the proof of all that was written."""
        if self._n_waiting:
            self._flush(self._n_waiting)
        chunks = -(-self.length // self._chunk)
        return Content(chunks, content_digest(self._backend, self.key, chunks))

    def _flush(self, n: int) -> None:
        values = np.concatenate(self._waiting)
        self._array.resize((self.length + n,))
        self._array[self.length : self.length + n] = values[:n]
        self.length += n
        self._waiting = [values[n:].copy()]
        self._n_waiting = values.size - n


def create_column(
    backend: Backend,
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype | type[str],
    dim: str,
    chunk: int,
) -> zarr.Array:
    """An empty one-dimensional array with compressed, checksummed chunks."""
    return zarr.create_array(
        backend.zarr,
        name=key,
        shape=shape,
        chunks=(chunk,),
        dtype=dtype,
        filters=None,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        chunk_key_encoding={"name": "default", "separator": "."},
        dimension_names=(dim,),
        config={"write_empty_chunks": True},
        overwrite=True,
    )


def content_digest(backend: Backend, key: str, n_chunks: int) -> str:
    """SHA-256 over an array's metadata and chunks, in order, each after its length."""
    total = hashlib.sha256()
    for name in ("zarr.json", *(f"c.{i}" for i in range(n_chunks))):
        data = backend.get(f"{key}/{name}")
        if data is None:
            raise CorruptionError(f"{key}/{name} is missing")
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def column_problem(backend: Backend, key: str, content: Content) -> str | None:
    """What is wrong with a coordinate array; None if its bytes are those that were written."""
    try:
        found = content_digest(backend, key, content.chunks)
    except CorruptionError as error:
        return str(error)
    return None if found == content.sha256 else "its bytes are not those that were written"


def read_column(backend: Backend, key: str, content: Content) -> np.ndarray:
    """All values of a coordinate; strings as an object array.

    Raises
    ------
    CorruptionError
        Its bytes are not those that were written.
    """
    problem = column_problem(backend, key, content)
    if problem is not None:
        raise CorruptionError(
            f"coordinate {key}: {problem}; actstore.repair (on the command line: actstore repair) "
            "makes it again from the model and the text"
        )
    values = np.asarray(zarr.open_array(backend.zarr, path=key, mode="r")[:])
    return values.astype(object) if values.dtype.kind == "T" else values
