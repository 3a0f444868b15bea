"""Lazy arrays: dask over the committed chunks of a run, labelled by xarray."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask.array as da
import numpy as np
import xarray as xr

from actstore.store.record import digest
from actstore.store.rows import RowBlock, Rows

if TYPE_CHECKING:
    from actstore.store.run import Run
    from actstore.store.stored import StoredRun

Index = int | slice | np.ndarray


class SiteRows:
    """What dask slices: (layer, sample, feature) of the rows in view, read when asked for.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        float32 for a run stored in bfloat16.
    """

    ndim = 3

    def __init__(self, stored: StoredRun, site: str, layers: list[int], rows: Rows) -> None:
        self._stored = stored
        self._site = site
        self._layers = np.asarray(layers, np.int64)
        self._rows = rows
        self.dtype = stored.record.stored.memory
        self.shape = (len(layers), rows.n, stored.record.sites[site].width)

    def __getitem__(self, index: tuple[Index, Index, Index]) -> np.ndarray:
        layer, sample, feature = index
        layers = np.atleast_1d(self._layers[layer])
        rows, order = self._choose(sample)
        width = self.shape[2]
        out = np.empty((layers.size, rows.n, width), self.dtype)
        for at, number in enumerate(layers.tolist()):
            for block in rows.blocks(max(rows.n, 1)):
                read_block(self._stored, self._site, number, block, out[at, block.out])
        if order is not None:
            out = out[:, order]
        if isinstance(sample, int | np.integer):
            out = out[:, 0]
        if isinstance(layer, int | np.integer):
            out = out[0]
        return out[..., feature]

    def _choose(self, sample: Index) -> tuple[Rows, np.ndarray | None]:
        """Increasing rows that hold what was asked for, and their order if it is another."""
        if isinstance(sample, slice) and sample.step in (None, 1):
            start, stop, _ = sample.indices(self._rows.n)
            return self._rows.between(start, stop), None
        numbers = np.atleast_1d(np.arange(self._rows.n)[sample])
        if np.all(np.diff(numbers) > 0):
            return self._rows.take(numbers), None
        unique, order = np.unique(numbers, return_inverse=True)
        return self._rows.take(unique), order


def read_block(stored: StoredRun, site: str, layer: int, block: RowBlock, out: np.ndarray) -> None:
    """Fill `out` (rows, width) with a RowBlock's rows of one layer."""
    start, _ = stored.record.shard_range(block.shard)
    rows = block.rows
    local = (
        slice(rows.start - start, rows.stop - start) if isinstance(rows, slice) else rows - start
    )
    stored.reader.read(site, layer, block.shard, local, out)


def site_array(run: Run, site: str, coords: dict[str, tuple[str, np.ndarray]]) -> xr.DataArray:
    """A site's rows in view as a lazy DataArray, one chunk a layer and shard.

    Parameters
    ----------
    run : Run
    site : str
    coords : dict of str to (dim, values)
        Coordinates on ``sample``.
    """
    stored, layers = run.stored, run.sites[site]
    spec = stored.record.sites[site]
    view = SiteRows(stored, site, layers, run.rows)
    if view.shape[1] == 0:
        data = da.zeros(view.shape, dtype=view.dtype, chunks=(1, 1, view.shape[2]))
    else:
        token = digest([run.key({site: layers}), site, layers])
        data = da.from_array(
            view,
            chunks=((1,) * len(layers), run.rows.lengths(), (view.shape[2],)),
            name=f"actstore-{site}-{token[:32]}",
            asarray=False,
            meta=np.empty((0, 0, 0), view.dtype),
        )
    return xr.DataArray(
        data,
        dims=(spec.axis, "sample", spec.feature),
        coords={spec.axis: np.asarray(layers, np.int64), **coords},
        name=site,
        attrs={
            "model": stored.record.model,
            "corpus": stored.record.corpus,
            "site": site,
            "module": spec.module,
            "stored_dtype": stored.record.dtype,
        },
    )
