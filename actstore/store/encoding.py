"""The bytes of one chunk file, with their checksum.

A chunk file is what Zarr's codecs ``bytes`` (little endian) and ``crc32c`` make of it:
all rows of a shard, padded with NaN to `shard_rows`, then four bytes of CRC-32C. With the codec
``zstd`` the rows are compressed before that, so a chunk is always read whole.
"""

from __future__ import annotations

import google_crc32c
import numpy as np

from actstore.store.codecs import compress, most_bytes
from actstore.store.dtypes import StoredDtype, to_disk

TRAILER = 4
"""Bytes of the checksum at the end."""


def chunk_bytes(shard_rows: int, width: int, dtype: StoredDtype, codec: str) -> int:
    """Size of every chunk file of a site; with a codec that compresses, the most it can be."""
    return most_bytes(shard_rows * (width + dtype.extra) * dtype.disk.itemsize, codec) + TRAILER


def encode(
    values: np.ndarray, shard_rows: int, dtype: StoredDtype, codec: str
) -> tuple[np.ndarray, int]:
    """Bytes of a chunk and their CRC-32C.

    Parameters
    ----------
    values : (rows, width) float
        At most `shard_rows` rows, already checked to fit.

    Returns
    -------
    data : (nbytes,) uint8
    checksum : int
        CRC-32C of all but the last four bytes, which are it.
    """
    rows, width = values.shape
    data = np.empty(chunk_bytes(shard_rows, width, dtype, "none"), np.uint8)
    items = data[:-TRAILER].view(dtype.disk).reshape(shard_rows, width + dtype.extra)
    to_disk(values, dtype, items[:rows])
    items[rows:] = dtype.fill
    if codec == "zstd":
        frame = compress(data[:-TRAILER])
        data = np.empty(len(frame) + TRAILER, np.uint8)
        data[:-TRAILER] = np.frombuffer(frame, np.uint8)
    checksum = google_crc32c.value(data[:-TRAILER])
    data[-TRAILER:] = np.frombuffer(checksum.to_bytes(TRAILER, "little"), np.uint8)
    return data, checksum


def problem_with(data: bytes | np.ndarray | None, nbytes: int, checksum: int) -> str | None:
    """What is wrong with a chunk's bytes; None if they are those that were committed."""
    if data is None:
        return "the chunk is missing"
    found = len(data)
    if found != nbytes:
        return f"the chunk has {found:,} bytes instead of {nbytes:,}"
    view = np.frombuffer(data, np.uint8)
    if google_crc32c.value(view[:-TRAILER]) != checksum:
        return "the chunk's checksum is not the committed one"
    if int.from_bytes(view[-TRAILER:].tobytes(), "little") != checksum:
        return "the chunk's own checksum is wrong"
    return None
