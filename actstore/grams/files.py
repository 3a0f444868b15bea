"""Grams on disk: Zarr arrays with checksums, in one file or in a store's cache."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.storage import ZipStore

from actstore.errors import CorruptionError, GramError
from actstore.grams.columns import Columns
from actstore.grams.statistics import Gram

FORMAT = 1


def save_gram(gram: Gram, path: str | PathLike[str]) -> None:
    """Write one file; `Gram.save`."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    if not path.parent.is_dir():
        raise GramError(f"the Gram cannot be written to {path}: there is no folder {path.parent}")
    try:
        with closing(ZipStore(partial, mode="w")) as store:
            write_gram(zarr.create_group(store), gram)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise GramError(f"the Gram cannot be written to {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def load_gram(path: str | PathLike[str]) -> Gram:
    """Read one file; `Gram.load`."""
    path = Path(path)
    if not path.is_file():
        raise GramError(f"no Gram at {path}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise GramError(f"{path} is not a Gram that this library saved, or it is truncated")
    try:
        with closing(ZipStore(path, mode="r")) as store:
            return read_gram(zarr.open_group(store, mode="r"), str(path))
    except (GramError, CorruptionError):
        raise
    except Exception as error:
        raise GramError(f"{path} is not a Gram that this library saved: {error}") from error


def write_gram(group: zarr.Group, gram: Gram, extra: dict[str, Any] | None = None) -> None:
    """Write all arrays into a group, and last the header that makes them count.

    One array of moments for each shape of block, ``(block, rows, columns)``, one chunk a block,
    so that any block can be read alone. Parts are groups of the same make, ``part_0`` and so on.
    """
    for number, part in enumerate(gram.parts):
        write_gram(group.require_group(f"part_{number}"), part)
    shapes: dict[str, list[tuple[int, int]]] = {}
    for pair in sorted(gram.blocks):
        height, width = gram.blocks[pair].shape
        shapes.setdefault(f"{height}x{width}", []).append(pair)
    for name, pairs in shapes.items():
        shape = gram.blocks[pairs[0]].shape
        array = _create(group, f"moments_{name}", (len(pairs), *shape), (1, *shape))
        for number, pair in enumerate(pairs):
            array[number] = gram.blocks[pair]
    for name, values in (("shift", gram.shift), ("total", gram.total)):
        joined = np.concatenate(values)
        _create(group, name, joined.shape, joined.shape)[:] = joined
    header = {
        "format": FORMAT,
        "columns": gram.columns.records(),
        "n": gram.n,
        "pairs": {name: [list(pair) for pair in pairs] for name, pairs in shapes.items()},
        "provenance": gram.provenance,
        "parts": len(gram.parts),
        **(extra or {}),
    }
    text = np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), np.uint8)
    _create(group, "header", text.shape, text.shape, "uint8")[:] = text


def read_header(group: zarr.Group, name: str) -> dict[str, Any]:
    """The header of a written Gram.

    Raises
    ------
    GramError
        None there: not a Gram, or one whose writing was interrupted.
    CorruptionError
        Its bytes have changed.
    """
    if "header" not in group:
        raise GramError(f"{name} is not a Gram, or its writing was interrupted")
    text = _read(group, "header", slice(None), name).tobytes()
    try:
        header: dict[str, Any] = json.loads(text)
    except ValueError:
        raise CorruptionError(f"the header of the Gram {name} cannot be read") from None
    if header.get("format") != FORMAT:
        raise GramError(
            f"{name} has Gram format {header.get('format')}, this version reads {FORMAT}"
        )
    return header


def read_gram(group: zarr.Group, name: str, only: Columns | None = None) -> Gram:
    """Read what `write_gram` wrote, or the columns `only` of it, every checksum compared.

    Raises
    ------
    GramError
        Not a Gram.
    CorruptionError
        A block is missing or its bytes have changed.
    """
    header = read_header(group, name)
    columns = Columns.from_records(header["columns"], header["provenance"]["model"])
    cuts = np.cumsum([column.width for column in columns])[:-1]
    shift, total = (
        np.split(_read(group, part, slice(None), name), cuts) for part in ("shift", "total")
    )
    chosen = list(range(len(columns))) if only is None else [columns.index(c) for c in only]
    place = {k: at for at, k in enumerate(chosen)}
    blocks = {
        (place[a], place[b]): _read(group, f"moments_{shape}", number, name)
        for shape, pairs in header["pairs"].items()
        for number, (a, b) in enumerate(pairs)
        if a in place and b in place
    }
    parts = []
    for number in range(header.get("parts", 0)):
        part = group.get(f"part_{number}")
        if not isinstance(part, zarr.Group):
            raise CorruptionError(f"part {number} of the Gram {name} is missing")
        parts.append(read_gram(part, f"{name}, part {number}", only))
    return Gram(
        columns if only is None else only,
        header["n"],
        [shift[k] for k in chosen],
        [total[k] for k in chosen],
        blocks,
        provenance=header["provenance"],
        parts=parts,
    )


def _create(
    group: zarr.Group, name: str, shape: Any, chunks: Any, dtype: str = "float64"
) -> zarr.Array:
    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        serializer=BytesCodec(endian=None if dtype == "uint8" else "little"),
        filters=None,
        compressors=(Crc32cCodec(),),
        fill_value=0 if dtype == "uint8" else float("nan"),
        overwrite=True,
    )


def _read(group: zarr.Group, array: str, index: Any, name: str) -> np.ndarray:
    """Values of an array; the fill value among them means that a chunk is missing."""
    try:
        values = np.ascontiguousarray(group[array][index])
    except (ValueError, KeyError, OSError) as error:
        raise CorruptionError(f"{array} of the Gram {name} cannot be read: {error}") from error
    if values.dtype == np.float64 and not np.isfinite(values).all():
        raise CorruptionError(f"{array} of the Gram {name} lacks a block")
    return values
