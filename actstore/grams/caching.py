"""Grams kept beside the run they came from, under a key of exactly what went in."""

from __future__ import annotations

import hashlib
import json
import warnings
from typing import Any

import zarr

from actstore.errors import ActstoreError, CorruptionError, GramError
from actstore.grams.columns import Columns
from actstore.grams.files import FORMAT, read_gram, read_header, write_gram
from actstore.grams.parts import Parts
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.weights import Weights

Blocks = frozenset[tuple[int, int]] | None


def cache_key(
    run: RowSource,
    columns: Columns,
    dtype: str,
    parts: Parts | None = None,
    weights: Weights | None = None,
    blocks: Blocks = None,
) -> dict[str, Any]:
    """Everything that the numbers depend on."""
    return {
        **({} if blocks is None else {"blocks": sorted(map(list, blocks))}),
        **({} if parts is None else {"parts": parts.digest()}),
        **({} if weights is None else {"weights": weights.digest()}),
        "format": FORMAT,
        "run": run.key({site: columns.layers(site) for site in columns.sites}),
        "columns": columns.records(),
        "precision": dtype,
    }


def kept_as(precision: str, sketch_seed: int) -> str:
    """The precision as keys name it: a sketch with its seed."""
    return f"sketch {sketch_seed}" if precision == "sketch" else precision


def read_cached(
    run: RowSource,
    columns: Columns,
    dtype: str,
    parts: Parts | None = None,
    weights: Weights | None = None,
    only: Columns | None = None,
    memory: float = float("inf"),
    blocks: Blocks = None,
    wanted: Blocks = None,
) -> Gram | None:
    """The kept Gram of `columns`, or the part of it that is `only` these, or these blocks of them;
    None where there is none, or its bytes are no longer those written. One larger than `memory`
    bytes is left on disk."""
    key = cache_key(run, columns, dtype, parts, weights, blocks)
    group = cache_group(run, key, create=False)
    if group is None:
        return None
    name = f"cached in {run.model}/{run.corpus}"
    try:
        if read_header(group, name).get("key") != key:
            return None
        return read_gram(group, name, only, memory=memory, wanted=wanted)
    except CorruptionError as error:
        warnings.warn(f"{error}; it is computed again", stacklevel=3)
        return None
    except GramError:
        return None


def write_cached(
    run: RowSource,
    gram: Gram,
    dtype: str,
    parts: Parts | None = None,
    weights: Weights | None = None,
    blocks: Blocks = None,
) -> bool:
    """Keep a Gram, and say whether it is; a store that cannot be written to costs a warning, not
    the result."""
    key = cache_key(run, gram.columns, dtype, parts, weights, blocks)
    try:
        group = cache_group(run, key, create=True)
        if group is not None:
            write_gram(group, gram, {"key": key})
        return group is not None
    except (ActstoreError, OSError) as error:
        warnings.warn(f"the Gram could not be kept in the store: {error}", stacklevel=3)
        return False


def cache_group(run: RowSource, key: dict[str, Any], *, create: bool) -> zarr.Group | None:
    """The group of a key beside the run; None where there is none, or no place for one."""
    make = getattr(run, "cache_group", None)
    if make is None:
        return None
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    group: zarr.Group | None = make(f"gram-{digest[:32]}", create=create)
    return group
