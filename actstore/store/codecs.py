"""How a chunk's bytes lie in its file: as they are, or compressed.

A file is what Zarr's codecs make of the chunk: ``bytes``, then ``zstd`` (level 1) where the run
has it, then ``crc32c``, whose four bytes come last.
"""

from __future__ import annotations

import numpy as np
from numcodecs import zstd
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import Crc32cCodec, ZstdCodec

from actstore.errors import KeyMismatchError, StoreError

CODECS = ("none", "zstd")
DEFAULT = "none"

_LEVEL = 1
_SMALL = 128 * 2**10


def check_codec(name: str) -> str:
    """`name` unchanged if chunks can be stored so; StoreError otherwise."""
    if name not in CODECS:
        raise StoreError(f"codec {name!r} asked for: choose one of {', '.join(CODECS)}")
    return name


def check_same_codec(run: str, stored: str, asked: str | None) -> None:
    """KeyMismatchError where a run was begun with another codec than is asked for by name."""
    if asked is not None and check_codec(asked) != stored:
        raise KeyMismatchError(
            f"{run} exists and is stored with codec {stored!r}, asked for {asked!r}: leave codec "
            "out to go on with it as it is, use another name (model_name=, corpus_name=), or "
            "remove the run first"
        )


def zarr_codecs(codec: str) -> list[BytesBytesCodec]:
    """What the metadata of a site's array says comes after ``bytes``."""
    compressing: list[BytesBytesCodec] = [ZstdCodec(level=_LEVEL)] if codec == "zstd" else []
    return [*compressing, Crc32cCodec()]


def most_bytes(nbytes: int, codec: str) -> int:
    """The most that `nbytes` can take once encoded, the checksum not counted.

    For zstd it is ZSTD_compressBound: what cannot be compressed grows by less than 0.5 % and 64
    bytes.
    """
    if codec == "none":
        return nbytes
    return nbytes + (nbytes >> 8) + (max(_SMALL - nbytes, 0) >> 11)


def compress(data: np.ndarray) -> bytes:
    """A zstd frame of `data`, (n,) uint8, which tells its length."""
    return zstd.compress(data, _LEVEL)


def decompress_into(payload: np.ndarray, out: np.ndarray) -> str | None:
    """Fill `out`, (n,) uint8, from a zstd frame of n bytes; what is wrong with it, or None."""
    try:
        zstd.decompress(payload, out)
    except (RuntimeError, ValueError) as error:
        return f"the chunk cannot be decompressed ({error})"
    return None
