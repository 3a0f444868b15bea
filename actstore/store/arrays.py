"""The arrays whose chunks come later: a site's rows, its journal, and its axis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from actstore.errors import SiteError, StoreError
from actstore.store.backend import Backend, put_all
from actstore.store.codecs import zarr_codecs
from actstore.store.columns import ColumnWriter
from actstore.store.layout import COLUMN, JOURNAL, RESERVED
from actstore.store.record import Record, Site, SiteLike, shared_axes, site_of


def add_request(
    backend: Backend,
    record: Record,
    specs: Mapping[str, SiteLike],
    wanted: Mapping[str, Sequence[int]],
) -> Record:
    """Record with one more request; the arrays it needs are written and durable.

    Raises
    ------
    SiteError
        A site without a description, or a layer outside it.
    """
    request = _checked(record, specs, wanted)
    axes = shared_axes(specs, record.axes)
    sites = dict(record.sites)
    for name in request:
        if name not in sites:
            sites[name] = site_of(name, specs[name], axes)
    record = replace(record, axes=axes, sites=sites, requests=[*record.requests, request])
    content, metadata, files = dict(record.content), dict(record.metadata), {}
    for name, site in sites.items():
        if site.axis not in content:
            column = ColumnWriter(
                backend, f"{record.name}/{site.axis}", np.dtype("int64"), site.axis, site.size
            )
            column.append(np.arange(site.size))
            content[site.axis] = column.close()
            backend.sync_tree(f"{record.name}/{site.axis}")
        for key, data in later_arrays(record, name, site).items():
            if key not in metadata:
                files[f"{record.name}/{key}/zarr.json"] = data
                metadata[key] = hashlib.sha256(data).hexdigest()
    put_all(backend, files)
    return replace(record, content=content, metadata=metadata)


def later_arrays(record: Record, name: str, site: Site) -> dict[str, bytes]:
    """Metadata of a site's array and of its journal, by key below the run's folder."""
    dtype = record.stored
    rows = _metadata(
        shape=(site.size, record.n_samples, site.width + dtype.extra),
        chunks=(1, record.shard_rows, site.width + dtype.extra),
        dtype=dtype.disk,
        fill_value=dtype.fill,
        dimension_names=(site.axis, "sample", site.feature),
        compressors=zarr_codecs(record.codec),
        attributes={"actstore_dtype": dtype.name, "module": site.module},
    )
    journal = _metadata(
        shape=(site.size, record.n_shards, 2),
        chunks=(site.size, 1, 2),
        dtype=np.dtype("<u8"),
        fill_value=0,
        dimension_names=(site.axis, "shard", "entry"),
        compressors=zarr_codecs("none"),
    )
    return {name: rows, f"{JOURNAL}/{name}": journal}


def _metadata(**options: Any) -> bytes:
    """``zarr.json`` of an array, spelled by zarr itself."""
    store = MemoryStore()
    zarr.create_array(
        store,
        serializer=BytesCodec(endian="little"),
        filters=None,
        chunk_key_encoding={"name": "default", "separator": "."},
        **options,
    )
    data = sync(store.get("zarr.json", default_buffer_prototype()))
    if data is None:
        raise StoreError("zarr did not write the array's metadata")
    return data.to_bytes()


def _checked(
    record: Record, specs: Mapping[str, SiteLike], wanted: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    request = {}
    for name, layers in wanted.items():
        spec = record.sites.get(name) or specs.get(name)
        if spec is None:
            raise SiteError(f"site {name!r} asked for, but only {', '.join(specs)} are described")
        if not COLUMN.fullmatch(name) or name in RESERVED or name in record.columns:
            raise SiteError(
                f"site {name!r} cannot be stored under that name: it is taken by a coordinate "
                "or not made of letters, digits, '.', '_' and '-'"
            )
        if name in record.sites and (spec.size, spec.width) != (
            specs[name].size if name in specs else spec.size,
            specs[name].width if name in specs else spec.width,
        ):
            raise SiteError(
                f"{record.name}: site {name!r} is stored with {spec.size} × {spec.width}, not "
                f"{specs[name].size} × {specs[name].width}"
            )
        numbers = sorted({int(layer) for layer in layers})
        if not numbers or numbers[0] < 0 or numbers[-1] >= spec.size:
            shown = f"{spec.dim} {numbers[-1] if numbers and numbers[0] >= 0 else numbers[:1]}"
            raise SiteError(
                f"{shown if numbers else 'no layer'} of {name} asked for, but {record.name} has "
                f"{spec.dim}s 0…{spec.size - 1}"
            )
        request[name] = numbers
    if not request:
        raise SiteError(f"{record.name}: no site asked for")
    return request
