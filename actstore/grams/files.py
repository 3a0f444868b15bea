"""Grams on disk: Zarr arrays with checksums, in one file or in a store's cache."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.storage import ZipStore

from actstore.errors import CorruptionError, GramError
from actstore.grams.blocks import Chosen
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
    for (height, width), pairs in pairs_by_shape(gram.columns, gram.blocks).items():
        array = create_moments(group, height, width, len(pairs))
        for number, pair in enumerate(pairs):
            array[number] = gram.blocks[pair]
    for number, part in enumerate(gram.parts):
        write_gram(group.require_group(f"part_{number}"), part)
    write_header(
        group,
        gram.columns,
        gram.n,
        gram.shift,
        gram.total,
        gram.provenance,
        len(gram.parts),
        extra,
        gram.blocks,
    )


def pairs_by_shape(
    columns: Columns, blocks: Collection[tuple[int, int]] | None = None
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Pairs i ≤ j, all or those of `blocks`, by the shape of their block: one array holds all of a
    shape, in this order."""
    shapes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, first in enumerate(columns):
        for j in range(i, len(columns)):
            if blocks is None or (i, j) in blocks:
                shapes.setdefault((first.width, columns[j].width), []).append((i, j))
    return shapes


def create_moments(group: zarr.Group, height: int, width: int, count: int) -> zarr.Array:
    """The array of all blocks of a shape."""
    return _create(group, f"moments_{height}x{width}", (count, height, width), (1, height, width))


def write_header(
    group: zarr.Group,
    columns: Columns,
    n: float,
    shift: Sequence[np.ndarray],
    total: Sequence[np.ndarray],
    provenance: dict[str, Any],
    parts: int,
    extra: dict[str, Any] | None,
    blocks: Collection[tuple[int, int]] | None = None,
) -> None:
    """What makes a group whose blocks are written a Gram."""
    for name, values in (("shift", shift), ("total", total)):
        write_array(group, name, np.concatenate(values))
    header = {
        "format": FORMAT,
        "columns": columns.records(),
        "n": n,
        "pairs": {
            f"{height}x{width}": [list(pair) for pair in pairs]
            for (height, width), pairs in pairs_by_shape(columns, blocks).items()
        },
        "provenance": provenance,
        "parts": parts,
        **(extra or {}),
    }
    text = np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), np.uint8)
    write_array(group, "header", text)


def write_array(group: zarr.Group, name: str, values: np.ndarray) -> None:
    """One small array in one chunk."""
    _create(group, name, values.shape, values.shape, values.dtype.name)[:] = values


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
    text = read_array(group, "header", slice(None), name).tobytes()
    try:
        header: dict[str, Any] = json.loads(text)
    except ValueError:
        raise CorruptionError(f"the header of the Gram {name} cannot be read") from None
    if header.get("format") != FORMAT:
        raise GramError(
            f"{name} has Gram format {header.get('format')}, this version reads {FORMAT}"
        )
    return header


def read_gram(
    group: zarr.Group,
    name: str,
    only: Columns | None = None,
    *,
    memory: float = float("inf"),
    wanted: Collection[tuple[int, int]] | None = None,
) -> Gram:
    """Read what `write_gram` wrote, or the columns `only` of it, or the blocks `wanted` of these,
    every checksum compared.

    Blocks that take more than `memory` bytes together are left on disk and read when used.

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
        np.split(read_array(group, part, slice(None), name), cuts) for part in ("shift", "total")
    )
    chosen = list(range(len(columns))) if only is None else [columns.index(c) for c in only]
    place = {k: at for at, k in enumerate(chosen)}
    places = {
        (place[a], place[b]): (group, f"moments_{shape}", number, name)
        for shape, pairs in header["pairs"].items()
        for number, (a, b) in enumerate(pairs)
        if a in place and b in place and (wanted is None or (place[a], place[b]) in wanted)
    }
    size = 8 * sum(columns[chosen[a]].width * columns[chosen[b]].width for a, b in places)
    blocks: Mapping[tuple[int, int], np.ndarray] = Chosen(read_array, places)
    if size * (1 + header.get("parts", 0)) <= memory:
        blocks = dict(blocks)
    parts = []
    for number in range(header.get("parts", 0)):
        part = group.get(f"part_{number}")
        if not isinstance(part, zarr.Group):
            raise CorruptionError(f"part {number} of the Gram {name} is missing")
        part_name = f"{name}, part {number}"
        room = float("inf") if isinstance(blocks, dict) else 0
        parts.append(read_gram(part, part_name, only, memory=room, wanted=wanted))
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
        fill_value=float("nan") if dtype == "float64" else 0,
        overwrite=True,
    )


def read_array(group: zarr.Group, array: str, index: Any, name: str) -> np.ndarray:
    """Values of an array; the fill value among them means that a chunk is missing."""
    try:
        values = np.ascontiguousarray(group[array][index])
    except (ValueError, KeyError, OSError) as error:
        raise CorruptionError(f"{array} of the Gram {name} cannot be read: {error}") from error
    if values.dtype == np.float64 and not np.isfinite(values).all():
        raise CorruptionError(f"{array} of the Gram {name} lacks a block")
    return values
