"""The columns of Z = [z₀ | z₁ | …]: which site and layer each block of features is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actstore.errors import SiteError
from actstore.grams.source import RowSource

Key = int | tuple[str, int]


@dataclass(frozen=True, slots=True)
class Column:
    """One block of columns: what one site holds at one layer.

    Attributes
    ----------
    site : str
    layer : int
        Layer, or block for what is inside a block.
    width : int
        Number of features.
    """

    site: str
    layer: int
    width: int

    def __str__(self) -> str:
        return f"{self.site}.{self.layer}"


class Columns(Sequence[Column]):
    """All blocks of columns in order, and how a caller names them.

    Where there is one site a block's key is its layer number; where there are more it is
    ``(site, layer)``, which is accepted everywhere.

    Parameters
    ----------
    columns : sequence of Column
    owner : str
        Whose they are, for messages: the model's name.
    """

    def __init__(self, columns: Sequence[Column], owner: str) -> None:
        self._columns = tuple(columns)
        self.owner = owner
        self.sites = tuple(dict.fromkeys(column.site for column in columns))
        self._index = {(c.site, c.layer): k for k, c in enumerate(columns)}

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: Any) -> Any:
        return self._columns[index]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self._columns == other._columns

    def __hash__(self) -> int:
        return hash(self._columns)

    def __repr__(self) -> str:
        held = ", ".join(f"{site} {describe_layers(self.layers(site))}" for site in self.sites)
        return f"<Columns {held}>"

    def layers(self, site: str) -> list[int]:
        """Layer numbers held of `site`."""
        return [column.layer for column in self._columns if column.site == site]

    def keys(self) -> list[Key]:
        """The short names, in order: layers, or (site, layer) where there are several sites."""
        if len(self.sites) == 1:
            return [column.layer for column in self._columns]
        return [(column.site, column.layer) for column in self._columns]

    def keys_of(self, places: Iterable[tuple[int, int]]) -> list[tuple[Key, Key]]:
        """Pairs of places as pairs of keys."""
        keys = self.keys()
        return [(keys[i], keys[j]) for i, j in places]

    def index(self, key: Any, start: int = 0, stop: int | None = None) -> int:
        """Place of a key; a negative layer counts from the site's last.

        Raises
        ------
        SiteError
            No such site or layer here.
        """
        del start, stop
        if isinstance(key, Column):
            key = (key.site, key.layer)
        if isinstance(key, tuple):
            found = self._index.get((key[0], self._absolute(*key)))
        elif len(self.sites) == 1:
            found = self._index.get((self.sites[0], self._absolute(self.sites[0], int(key))))
        else:
            raise SiteError(
                f"layer {key} asked for, but there are several sites: name one, as in "
                f"({self.sites[0]!r}, {key})"
            )
        if found is None:
            raise self._missing(key)
        return found

    def _absolute(self, site: str, layer: int) -> int:
        held = self.layers(site) if layer < 0 else []
        return held[layer] if -len(held) <= layer < 0 else layer

    def _missing(self, key: Any) -> SiteError:
        site, layer = key if isinstance(key, tuple) else (self.sites[0], key)
        if site not in self.sites:
            return SiteError(f"site {site!r} asked for, but there is {', '.join(self.sites)}")
        return SiteError(missing_layer(self.owner, site, layer, self.layers(site)))

    def records(self) -> list[list[Any]]:
        """JSON-able form."""
        return [[column.site, column.layer, column.width] for column in self._columns]

    @classmethod
    def from_records(cls, records: Sequence[Sequence[Any]], owner: str) -> Columns:
        """Inverse of `records`."""
        return cls([Column(str(s), int(n), int(w)) for s, n, w in records], owner)


def select_columns(
    run: RowSource, sites: str | Sequence[str] | None, layers: Sequence[int] | None
) -> Columns:
    """The columns a caller asks for, by site and then by layer.

    Parameters
    ----------
    run : RowSource
    sites : str, sequence of str, or None
        None: ``resid`` where the run has it, else every site in view.
    layers : sequence of int, optional
        Of each site; negative ones count from the last in view. Default: all in view.

    Raises
    ------
    SiteError
        A site or layer that is not in view.
    """
    if sites is None:
        sites = ("resid",) if "resid" in run.sites else tuple(run.sites)
    chosen = []
    for site in dict.fromkeys((sites,) if isinstance(sites, str) else sites):
        if site not in run.sites:
            raise SiteError(
                f"site {site!r} asked for, but {run.model}/{run.corpus} has {', '.join(run.sites)}"
            )
        held = list(run.sites[site])
        wanted = held if layers is None else [_absolute(layer, held) for layer in layers]
        for layer in sorted(set(wanted)):
            if layer not in held:
                raise SiteError(missing_layer(run.model, site, layer, held))
            chosen.append(Column(site, layer, run.width(site)))
    if not chosen:
        raise SiteError(f"no layers asked for of {run.model}/{run.corpus}")
    return Columns(chosen, run.model)


def _absolute(layer: int, held: Sequence[int]) -> int:
    return held[layer] if -len(held) <= layer < 0 else int(layer)


def missing_layer(owner: str, site: str, layer: Any, held: Sequence[int]) -> str:
    """One line: layer asked for, layers there are."""
    note = " (0 is the embedding)" if site == "resid" and held and held[0] == 0 else ""
    what = "" if site == "resid" else f"{site} "
    return f"{what}layer {layer} asked for, but {owner} has layers {describe_layers(held)}{note}"


def describe_layers(layers: Sequence[int]) -> str:
    """``0…12`` where they follow each other, else ``0, 3, 6``."""
    layers = list(layers)
    if len(layers) > 2 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}…{layers[-1]}"
    return ", ".join(map(str, layers))
