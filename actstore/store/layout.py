"""Where things lie in a store: labels, keys, and how many rows a shard holds.

Format 1 is plain Zarr v3, so that zarr or xarray alone can read it (FORMAT.md has all of it)::

    zarr.json                        root group, attribute actstore: {format: 1, kind: store}
    <model>/zarr.json                group
    <model>/<corpus>/zarr.json       the run: attribute actstore is its record, digest included
      <site>   (layer|block, sample, feature)   chunk: 1 layer × shard_rows × all features;
                                     codecs bytes, (zstd,) crc32c; fill NaN; bfloat16 as uint16 bits
                                     with attribute actstore_dtype; int8 has 4 more items a row,
                                     the bytes of its scale (float32, little-endian)
      layer, block                   absolute numbers of the first axes
      document, position, token, …   (sample,) coordinates; codecs zstd, crc32c
      sequences/input_ids            token ids of all sequences, one after the other
      sequences/start                (sequence + 1,) where each begins
      sequences/document             (sequence,) document of each
      journal/<site>                 (layer|block, shard, 2): size in bytes and CRC-32C of each
                                     committed chunk without its last four bytes; 0 before
      cache/<name>                   groups of what was computed from the run

A chunk's key is ``c.<layer>.<shard>.0``. A chunk without a journal entry is not part of the
run, whether its file is there or not. Consolidated metadata is never written.
"""

from __future__ import annotations

import re

from actstore.errors import StoreError

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
COLUMN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

JOURNAL = "journal"
SEQUENCES = "sequences"
CACHE = "cache"
RESERVED = frozenset(
    {"layer", "block", "sample", "feature", "shard", "entry", JOURNAL, SEQUENCES, CACHE}
)

COLUMN_CHUNK = 65_536
ITEM_CHUNK = 1_048_576

_ROW_UNIT = 1024
_SHARDS = 32
_CHUNK_BYTES = 64 * 2**20


def check_label(kind: str, label: str) -> str:
    """`label` unchanged if it is safe as a folder's name; StoreError otherwise."""
    if not LABEL.fullmatch(label) or label == "zarr.json" or label.endswith(".partial"):
        raise StoreError(
            f"{label!r} cannot name a {kind}: use letters, digits, '.', '_' and '-', starting "
            "with a letter or digit"
        )
    return label


def check_column(name: str) -> str:
    """`name` unchanged if it can name a sample coordinate; StoreError otherwise."""
    if not COLUMN.fullmatch(name) or name in RESERVED or name == "zarr.json":
        raise StoreError(
            f"{name!r} cannot name a coordinate: use letters, digits, '.', '_' and '-', and none "
            f"of {', '.join(sorted(RESERVED))}"
        )
    return name


def run_key(model: str, corpus: str) -> str:
    """Folder of a run below the store's root."""
    return f"{model}/{corpus}"


def chunk_name(layer: int, shard: int) -> str:
    """File of one chunk in a site's folder."""
    return f"c.{layer}.{shard}.0"


def journal_name(shard: int) -> str:
    """File of one shard's entries in a site's journal."""
    return f"c.0.{shard}.0"


def shard_rows(n_samples: int, row_bytes: int) -> int:
    """Rows of a shard: about 1/32 of the run, in units of 1,024, chunks of at most 64 MB.

    Parameters
    ----------
    n_samples : int
    row_bytes : int
        Bytes of one row of the widest site.

    Returns
    -------
    int
        At least 1,024, or `n_samples` where the run is smaller than that.
    """
    most = max(_CHUNK_BYTES // row_bytes // _ROW_UNIT * _ROW_UNIT, _ROW_UNIT)
    wanted = -(-n_samples // _SHARDS)
    rounded = -(-wanted // _ROW_UNIT) * _ROW_UNIT
    return min(max(rounded, _ROW_UNIT), most, max(n_samples, 1))
