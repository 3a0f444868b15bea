"""Maps on disk: one safetensors file with its provenance, read map by map."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import isnan, nan
from os import PathLike
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from safetensors import SafetensorError, safe_open

from actstore.errors import FitError
from actstore.fitting.maps import LinearMap, MapSet
from actstore.grams.columns import Columns

FORMAT = 1
DTYPES: dict[str, np.dtype] = {"float64": np.dtype("<f8"), "float32": np.dtype("<f4")}
NAMES = {"float64": "F64", "float32": "F32"}


def save_maps(maps: MapSet, path: str | PathLike[str], dtype: str = "float64") -> None:
    """Write all maps; `MapSet.save`. One matrix is held at a time beside the maps themselves.

    The layout is safetensors' own: eight bytes of header length, a JSON header with the place of
    each tensor and a metadata text, then the tensors' bytes. Tensors are called
    ``<source>/<target>/matrix`` and ``…/bias``.

    Raises
    ------
    FitError
        Another dtype, or the file cannot be written.
    """
    if dtype not in DTYPES:
        raise FitError(f"dtype={dtype!r} is not kept in map files: choose {' or '.join(DTYPES)}")
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    header: dict[str, Any] = {}
    sums: dict[str, int] = {}
    at = 0
    for name, array in _tensors(maps):
        values = array.astype(DTYPES[dtype])
        end = at + values.nbytes
        header[name] = {
            "dtype": NAMES[dtype],
            "shape": list(values.shape),
            "data_offsets": [at, end],
        }
        sums[name] = _checksum(values)
        at = end
    record = {
        "format": FORMAT,
        "columns": maps.columns.records(),
        "maps": [_map_record(maps, place) for place in maps.places],
        "crc32c": sums,
        "provenance": maps.provenance,
    }
    metadata = {"actstore_maps": json.dumps(record, ensure_ascii=False)}
    text = json.dumps({"__metadata__": metadata, **header}, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, array in _tensors(maps):
                file.write(np.ascontiguousarray(array, DTYPES[dtype]).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise FitError(f"the maps cannot be written to {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def load_maps(path: str | PathLike[str]) -> MapSet:
    """Open a file of maps; a map is read, and its checksum compared, when it is asked for.

    Parameters
    ----------
    path : path

    Returns
    -------
    MapSet

    Raises
    ------
    FitError
        Not there, truncated, or not a file of maps.
    """
    path = Path(path)
    if not path.is_file():
        raise FitError(f"no maps at {path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise FitError(f"{path} is truncated or not a safetensors file: {error}") from None
    if "actstore_maps" not in metadata:
        raise FitError(f"{path} holds tensors, but not maps that MapSet.save wrote")
    record = json.loads(metadata["actstore_maps"])
    if record["format"] != FORMAT:
        raise FitError(f"{path} has map format {record['format']}, this version reads {FORMAT}")
    columns = Columns.from_records(record["columns"], record["provenance"]["model"])
    return MapSet(_FileMaps(path, columns, record), columns, record["provenance"])


class _FileMaps(Mapping[tuple[int, int], LinearMap]):
    """The maps of a file, each read when asked for."""

    def __init__(self, path: Path, columns: Columns, record: Mapping[str, Any]) -> None:
        self._path = path
        self._columns = columns
        self._sums = record["crc32c"]
        self._records = {(entry["source"], entry["target"]): entry for entry in record["maps"]}

    def __getitem__(self, place: tuple[int, int]) -> LinearMap:
        entry = self._records[place]
        source, target = place
        keys = self._columns.keys()
        return LinearMap(
            keys[source],
            keys[target],
            self._tensor(_name(self._columns, place, "matrix")),
            self._tensor(_name(self._columns, place, "bias")) if entry["bias"] else None,
            entry["rank"],
            entry["condition"],
            entry["method"],
            nan if entry.get("degrees_of_freedom") is None else entry["degrees_of_freedom"],
            entry.get("ridge", 0.0),
        )

    def __contains__(self, place: object) -> bool:
        return place in self._records

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def _tensor(self, name: str) -> np.ndarray:
        try:
            with safe_open(self._path, framework="numpy") as file:
                values: np.ndarray = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise FitError(f"{name} of {self._path} cannot be read: {error}") from None
        if _checksum(values) != self._sums[name]:
            raise FitError(f"{name} of {self._path} has changed on disk: its checksum is wrong")
        return values


def _tensors(maps: MapSet) -> Iterator[tuple[str, np.ndarray]]:
    for place in maps.places:
        fitted = maps.at(place)
        yield _name(maps.columns, place, "matrix"), fitted.matrix
        if fitted.bias is not None:
            yield _name(maps.columns, place, "bias"), fitted.bias


def _checksum(values: np.ndarray) -> int:
    return int(google_crc32c.value(np.ascontiguousarray(values).reshape(-1).view(np.uint8)))


def _name(columns: Columns, place: tuple[int, int], part: str) -> str:
    return f"{columns[place[0]]}/{columns[place[1]]}/{part}"


def _map_record(maps: MapSet, place: tuple[int, int]) -> dict[str, Any]:
    fitted = maps.at(place)
    return {
        "source": place[0],
        "target": place[1],
        "bias": fitted.bias is not None,
        "rank": fitted.rank,
        "condition": fitted.condition,
        "method": fitted.method,
        "degrees_of_freedom": None
        if isnan(fitted.degrees_of_freedom)
        else fitted.degrees_of_freedom,
        "ridge": fitted.ridge,
    }
