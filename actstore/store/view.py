"""What of a run is in view, and narrowing it: by labels, by position, by whole documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from actstore.errors import SelectionError, SiteError
from actstore.store.record import digest
from actstore.store.rows import RowBlock, Rows
from actstore.store.select import coordinate_mask, held_out, narrowed, sample_numbers
from actstore.store.stored import StoredRun


class View:
    """Some rows of some sites of a run; narrowing reads nothing but the coordinates it uses.

    Attributes
    ----------
    sites : dict of str to list of int
        Layers (or blocks) in view of each site.
    rows : Rows
        Samples in view, in increasing order.
    stored : StoredRun
        The whole run as it lies on disk.
    """

    def __init__(self, stored: StoredRun, sites: Mapping[str, list[int]], rows: Rows) -> None:
        self.stored = stored
        self.sites = dict(sites)
        self.rows = rows

    @property
    def model(self) -> str:
        return self.stored.record.model

    @property
    def corpus(self) -> str:
        return self.stored.record.corpus

    @property
    def name(self) -> str:
        """``model/corpus``."""
        return self.stored.record.name

    @property
    def dtype(self) -> str:
        """``float32``, ``float16``, or ``bfloat16`` or ``int8``, which are read as float32."""
        return self.stored.record.dtype

    @property
    def n_samples(self) -> int:
        """Samples in view: committed and selected."""
        return self.rows.n

    def width(self, site: str) -> int:
        """Features of a site's rows."""
        self._layers(site)
        return self.stored.record.sites[site].width

    def dim(self, site: str) -> str:
        """What a site's first axis counts: ``layer`` or ``block``."""
        self._layers(site)
        return self.stored.record.sites[site].dim

    def coordinate(self, name: str) -> np.ndarray:
        """(n_samples,) values of one sample coordinate in view."""
        if name not in self.stored.record.columns:
            raise SelectionError(
                f"coordinate {name!r} asked for, but {self.name} has "
                f"{', '.join(self.stored.record.columns)}"
            )
        values = self.stored.column(name)
        parts = [values[index] for _, index in self.rows.pieces]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else values[:0]

    def sel(self, **choices: Any) -> Self:
        """Narrower run by labels.

        Parameters
        ----------
        layer, block : int, list of int or slice
            Absolute numbers; negative ones count from the end; a slice takes both ends.
        site : str or list of str
        **coordinates
            Value, list, or slice (both ends taken) of any sample coordinate.

        Examples
        --------
        >>> run.sel(layer=[0, 6], token=" the", position=slice(1, 20))  # doctest: +SKIP
        """
        run = self
        for name, choice in choices.items():
            if name == "site":
                names = [choice] if isinstance(choice, str) else list(choice)
                run = type(self)(self.stored, {site: run._layers(site) for site in names}, run.rows)
            elif name in ("layer", "block"):
                specs = self.stored.record.sites
                dims = {site: (specs[site].dim, specs[site].size) for site in run.sites}
                sites = narrowed(run.sites, dims, name, choice, self.name)
                run = type(self)(self.stored, sites, run.rows)
            elif name == "sample":
                raise SelectionError("samples have no labels: use isel(sample=...) for positions")
            else:
                mask = coordinate_mask(name, run.coordinate(name), choice)
                run = run.isel(sample=mask)
        return run

    def isel(self, *, sample: Any = slice(None)) -> Self:
        """Narrower run by position.

        Parameters
        ----------
        sample : slice, int, increasing ints, or (n_samples,) bool
            Negative numbers count from the end.
        """
        numbers = sample_numbers(sample, self.n_samples)
        if isinstance(numbers, slice):
            return type(self)(
                self.stored, self.sites, self.rows.between(numbers.start, numbers.stop)
            )
        return type(self)(self.stored, self.sites, self.rows.take(numbers))

    def split(self, fraction: float, by: str = "document", seed: int = 0) -> tuple[Self, Self]:
        """The rest, and a held-out part with whole groups of samples.

        The distinct values of `by` are shuffled by `seed` and held out one after the other
        until they hold at least `fraction` of the samples in view.

        Parameters
        ----------
        fraction : float
            Between 0 and 1.
        by : str
            Sample coordinate whose equal values stay together; ``"sample"`` for each alone.
        seed : int

        Returns
        -------
        rest, held_out : Run
        """
        groups = np.arange(self.n_samples) if by == "sample" else self.coordinate(by)
        mask = held_out(groups, fraction, seed)
        return self.isel(sample=~mask), self.isel(sample=mask)

    def row_blocks(self, max_rows: int) -> list[RowBlock]:
        """The rows in view cut into blocks of at most `max_rows`, none across two shards."""
        if max_rows < 1:
            raise SelectionError(f"blocks of {max_rows} rows asked for, but one is the least")
        return self.rows.blocks(int(max_rows))

    def key(self, sites: Mapping[str, Sequence[int]] | None = None) -> str:
        """SHA-256 of everything that fixes the numbers in view.

        Parameters
        ----------
        sites : dict of str to layers, optional
            Only these (site, layer)s; by default all in view. Labels do not count, so a
            renamed run keeps its keys.
        """
        chosen = self.sites if sites is None else sites
        shards = [shard for shard, _ in self.rows.pieces]
        total = hashlib.sha256()
        for site in sorted(chosen):
            for layer in chosen[site]:
                entries = self.stored.journal.entries[site][layer, shards]
                total.update(f"{site}/{layer}".encode() + entries.tobytes())
        return digest([self.stored.record.identity(), self.rows.digest(), total.hexdigest()])

    def _layers(self, site: str) -> list[int]:
        if site not in self.sites:
            raise SiteError(
                f"site {site!r} asked for, but {self.name} has {', '.join(self.sites)} in view"
            )
        return self.sites[site]
