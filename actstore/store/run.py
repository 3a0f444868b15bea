"""A run as its users see it: labelled, lazy, read block by block or in shuffled minibatches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from actstore.errors import CorruptionError, SiteError, StoreError
from actstore.store.backend import Backend, location
from actstore.store.caching import Caching
from actstore.store.lazy import read_block, site_array
from actstore.store.record import check_key, has_changed
from actstore.store.rows import RowBlock, Rows
from actstore.store.select import spans
from actstore.store.stored import StoredRun
from actstore.store.table import html_table, run_info, run_row, run_text
from actstore.store.verify import Problem, verify
from actstore.store.view import View
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.store.to_torch import Minibatches


class Run(Caching, View):
    """One model on one corpus: the committed rows, or a selection of them.

    Selections (`sel`, `isel`, `split`) give narrower runs and read nothing but the
    coordinates they use. Samples stay in increasing order.

    Attributes
    ----------
    model, corpus : str
    sites : dict of str to list of int
        Layers (or blocks) in view of each site.
    n_samples : int
        Samples in view.
    """

    @classmethod
    def load(cls, backend: Backend, name: str, *, warn: bool = True) -> Run:
        """The run called ``model/corpus``; StoreError if there is none.

        A damaged run is given all the same, with a warning unless `warn` is False.
        """
        stored = StoredRun.load(backend, name)
        if stored is None:
            raise StoreError(f"{location(backend)} has no run {name}")
        if stored.problems and warn:
            warnings.warn(
                f"{name} is damaged ({count(len(stored.problems), 'problem')}, first: "
                f"{stored.problems[0]}); run.verify() lists all",
                UserWarning,
                stacklevel=3,
            )
        sites, shards = stored.visible()
        record = stored.record
        whole = [(int(k), slice(*record.shard_range(int(k)))) for k in np.flatnonzero(shards)]
        return cls(stored, sites, Rows(whole))

    @property
    def state(self) -> str:
        """``complete``, ``k of n shards``, or how much is damaged."""
        return self.stored.state

    @property
    def nbytes(self) -> int:
        """Bytes of the whole run's chunks on disk."""
        return self.stored.nbytes

    def info(self) -> dict[str, Any]:
        """Provenance, the key, and what is stored, as plain JSON values."""
        return run_info(self.stored)

    def key_differences(self, key: Mapping[str, Any], dtype: str) -> list[str]:
        """Entries in which the run's key is not `key`, in words; empty where it is the same."""
        return self.stored.record.key_differences(key, dtype)

    def check_key(self, key: Mapping[str, Any], dtype: str) -> None:
        """KeyMismatchError, saying which entries differ, unless the run's key is `key`."""
        check_key(self.stored.record, key, dtype)

    def verify(self, *, whole: bool = False) -> list[Problem]:
        """Every problem of the whole run, all at once; every byte on disk is checked.

        Parameters
        ----------
        whole : bool
            Count as problems the shards, too, that were asked for and are not committed. By
            default they are none, since an extraction that has not ended is no damage (`state`
            tells of it); but a journal that was lost looks the same. ``actstore verify`` on the
            command line counts them.

        Returns
        -------
        list of Problem
            Empty where every byte is the one that was written, and, with `whole`, all is there.
        """
        return verify(self.stored.backend, self.name, whole=whole)

    def __getitem__(self, site: str) -> xr.DataArray:
        """Lazy (layer or block, sample, feature) array of a site's rows in view.

        A damaged coordinate is left out of it, with a warning.
        """
        self._layers(site)
        array = site_array(self, site, self._sample_coords())
        spec = self.stored.record.sites[site]
        return array.rename({spec.axis: spec.dim, spec.feature: "feature"})

    def __getattr__(self, name: str) -> xr.DataArray:
        if name in self.__dict__.get("sites", ()):
            return self[name]
        raise AttributeError(f"{type(self).__name__} has no attribute or site {name!r}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.sites]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.sites)

    def to_dataset(self) -> xr.Dataset:
        """All sites in view, lazy, side by side; widths that differ have dims of their own.

        A damaged coordinate is left out of it, with a warning.
        """
        coords = self._sample_coords()
        arrays = {site: site_array(self, site, coords) for site in self.sites}
        # Layers of two sites may differ; an outer join would invent rows of NaN.
        axes: dict[str, list[int]] = {}
        for site, layers in self.sites.items():
            axis = self.stored.record.sites[site].axis
            if axes.setdefault(axis, layers) != layers:
                arrays[site] = arrays[site].rename({axis: f"{site}_{axis}"})
        return xr.Dataset(arrays, attrs={"model": self.model, "corpus": self.corpus})

    @property
    def samples(self) -> xr.Dataset:
        """The sample coordinates in view, in memory; CorruptionError if one is damaged."""
        columns = self.stored.record.columns
        return xr.Dataset(coords={name: ("sample", self.coordinate(name)) for name in columns})

    def read(
        self, site: str, layer: int, block: RowBlock, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Rows of one layer, checked against the journal.

        Parameters
        ----------
        site : str
        layer : int
            Layer or block number in view.
        block : RowBlock
            From `row_blocks`.
        out : (n_rows, width) of the dtype that reading gives, optional
            Memory to fill: buffers used again read several times faster than new ones.

        Returns
        -------
        (n_rows, width) float32 or float16

        Raises
        ------
        CorruptionError
            The chunk is missing or its bytes are not those that were committed.
        """
        if layer not in self._layers(site):
            raise SiteError(
                f"{self.dim(site)} {layer} of {site} asked for, but {self.name} has "
                f"{spans(self.sites[site])} in view"
            )
        shape = (block.out.stop - block.out.start, self.stored.record.sites[site].width)
        memory = self.stored.record.stored.memory
        if out is None:
            out = np.empty(shape, memory)
        elif out.shape != shape or out.dtype != memory:
            raise ValueError(f"out is {out.dtype} {out.shape}, expected {memory} {shape}")
        read_block(self.stored, site, layer, block, out)
        return out

    def to_torch(
        self,
        site: str = "resid",
        layers: int | slice | Sequence[int] | None = None,
        *,
        batch_size: int = 4096,
        mixed: bool = False,
        shuffle: bool = True,
        buffer: int | None = None,
        lanes: int = 1,
        seed: int = 0,
        epoch: int = 0,
        dtype: Any = None,
        coordinates: Sequence[str] = (),
        drop_last: bool = False,
    ) -> Minibatches:
        """A torch dataset of minibatches, each row once an epoch, for training on the store.

        Parameters
        ----------
        site : str
        layers : int, slice or sequence of int, optional
            As for ``sel``; default: all in view.
        batch_size : int
            Rows of a batch.
        mixed : bool
            A row is one layer of one sample, and a batch has rows of all layers mixed. Otherwise
            a row is a sample, with all its layers.
        shuffle : bool
            Chunks come in random order, and the rows of several chunks are mixed in a buffer.
            Otherwise rows keep their order.
        buffer : int, optional
            Rows that are mixed; a run of no more than these is shuffled as a whole. Default:
            what 256 MiB hold. Another such buffer is filled while one is used. A chunk that is
            compressed or comes over a network is read whole for each buffer that its rows go to:
            there, give it a chunk's length or more.
        lanes : int
            Buffers that batches come from in turn. As many as worker processes (or a multiple)
            let each worker read only chunks of its own; otherwise all of them read all.
        seed, epoch : int
            The order follows from these, the rows in view and the parameters above; not from
            the number of workers, how they are started, or where an iteration began.
        dtype : torch.dtype or str, optional
            Default: float16 where it is stored so, else float32.
        coordinates : sequence of str
            Sample coordinates to have in the batches.
        drop_last : bool
            Leave out the last batch of an epoch where it is smaller than the others.

        Returns
        -------
        Minibatches
            An ``IterableDataset`` of dicts: ``activations`` (layers, rows, width), or (rows,
            width) for one layer given as an int or mixed layers; ``layer`` (layers,), or (rows,)
            for mixed ones; ``sample`` and ``row`` (rows,), the numbers of the samples in the
            whole run and in this view of it; the coordinates, as tensors, strings as lists.
            ``set_epoch`` chooses the epoch, ``state_dict`` and ``load_state_dict`` keep the
            position within it.

        Raises
        ------
        SelectionError, SiteError
            Nothing of that site, layer or coordinate in view, or parameters that do not fit.

        Examples
        --------
        >>> data = run.to_torch(layers=6, batch_size=4096, lanes=4)  # doctest: +SKIP
        >>> loader = torch.utils.data.DataLoader(  # doctest: +SKIP
        ...     data, batch_size=None, num_workers=4
        ... )
        """
        from actstore.store.to_torch import Minibatches

        return Minibatches(
            self,
            site,
            layers,
            mixed=mixed,
            batch_size=batch_size,
            shuffle=shuffle,
            buffer=buffer,
            lanes=lanes,
            seed=seed,
            epoch=epoch,
            dtype=dtype,
            coordinates=coordinates,
            drop_last=drop_last,
        )

    def input_ids(self, sequence_numbers: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Token ids (int32) that were run, by sequence number."""
        return self.stored.sequences.input_ids(np.asarray(sequence_numbers, np.int64))

    def __repr__(self) -> str:
        return run_text(self)

    def _repr_html_(self) -> str:
        return html_table([run_row(self)])

    def summary(self) -> dict[str, str]:
        """What a table of runs says of it."""
        return run_row(self)

    def _sample_coords(self) -> dict[str, tuple[str, np.ndarray]]:
        """All that can be read: a damaged one is left out, so that it does not bar the rows."""
        coords = {}
        for name in self.stored.record.columns:
            try:
                coords[name] = ("sample", self.coordinate(name))
            except CorruptionError as error:
                if has_changed(self.stored.backend, self.stored.record):
                    raise
                warnings.warn(f"{error}; left out until then", UserWarning, stacklevel=3)
        return coords
