"""A Gram larger than memory: on disk as it grows, pass by pass, and read block by block."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

from actstore.errors import CorruptionError
from actstore.grams.columns import Columns
from actstore.grams.files import (
    create_moments,
    pairs_by_shape,
    read_array,
    read_gram,
    write_array,
    write_header,
)
from actstore.grams.kernel import Partial, Tile
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


class TiledGram:
    """The blocks of a Gram in a Zarr group, laid out as `write_gram` lays them out.

    The shift is written first and stays. After a pass's blocks and sums an array ``done_<k>`` says
    which pairs they are: a pass counts once that is there, and the Gram once its header is. Of a
    Gram with parts each has a group of its own in it, and its blocks are their sums.
    """

    def __init__(
        self,
        group: zarr.Group,
        columns: Columns,
        parts: int = 0,
        blocks: Collection[tuple[int, int]] | None = None,
    ) -> None:
        self.group = group
        self.columns = columns
        self.parts = parts
        self._shapes = pairs_by_shape(columns, blocks)
        self._blocks = blocks
        self._name = f"{group.path} of {columns.owner}"
        self._place = {
            pair: (f"moments_{height}x{width}", number)
            for (height, width), pairs in self._shapes.items()
            for number, pair in enumerate(pairs)
        }
        self._done: list[tuple[int, int]] = []

    def shift(self) -> dict[int, np.ndarray] | None:
        """What an interrupted computation began with, and which pairs it had done; None where
        there is none, or it has been damaged."""
        try:
            cuts = np.cumsum([column.width for column in self.columns])[:-1]
            joined = read_array(self.group, "shift", slice(None), self._name)
            names = sorted(name for name in self.group.array_keys() if name.startswith("done_"))
            done = [read_array(self.group, name, slice(None), self._name) for name in names]
        except CorruptionError:
            return None
        self._done = [(int(a), int(b)) for pairs in done for a, b in pairs.reshape(-1, 2)]
        return dict(enumerate(np.split(joined, cuts)))

    def begin(self, shift: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Lay out an empty Gram about this shift; what was there before is cleared."""
        self._forget()
        if "header" in self.group:
            del self.group["header"]
        for group in (self.group, *self._part_groups()):
            for (height, width), pairs in self._shapes.items():
                create_moments(group, height, width, len(pairs))
        self._done = []
        write_array(self.group, "shift", np.concatenate([shift[k] for k in sorted(shift)]))
        return shift

    def _part_groups(self) -> list[zarr.Group]:
        return [self.group.require_group(f"part_{number}") for number in range(self.parts)]

    def _forget(self) -> None:
        """Let no pass count."""
        for name in [name for name in self.group.array_keys() if name.startswith("done_")]:
            del self.group[name]

    def has(self, tiles: Sequence[Tile]) -> bool:
        """Whether all pairs of these tiles are on disk."""
        done = set(self._done)
        return all((tile.row, k) in done for tile in tiles for k in range(tile.start, tile.stop))

    @property
    def shared(self) -> bool:
        """Whether other processes can write them too."""
        return not isinstance(self.group.store, MemoryStore)

    def write(self, pass_: Partial) -> list[tuple[int, int]]:
        """Put one pass on disk, or what one task made of it; the pairs that it has."""
        groups = self._part_groups()
        for part, pair, values in pass_.blocks(self.columns) if groups else ():
            self._put(groups[part], pair, values)
        for (part, k), values in pass_.sums.items() if groups else ():
            write_array(groups[part], f"sum_{k}", values)
        whole = pass_.over_parts()
        pairs = []
        for _, pair, values in whole.blocks(self.columns):
            self._put(self.group, pair, values)
            pairs.append(pair)
        for (_, k), values in whole.sums.items():
            write_array(self.group, f"sum_{k}", values)
        a, b = pairs[0]
        write_array(self.group, f"done_{a}_{b}", np.array(pairs, np.float64))
        self.note(pairs)
        return pairs

    def note(self, pairs: Sequence[tuple[int, int]]) -> None:
        """That these pairs are on disk."""
        self._done += pairs

    def _put(self, group: zarr.Group, pair: tuple[int, int], values: np.ndarray) -> None:
        array, number = self._place[pair]
        group[array][number] = values  # type: ignore[index]

    def finish(
        self,
        run: RowSource,
        n: float,
        provenance: dict[str, Any],
        extra: dict[str, Any],
        parts: Sequence[tuple[float, dict[str, Any]]] = (),
    ) -> Gram:
        """Make the blocks count, and give the Gram whose blocks stay on disk.

        Parameters
        ----------
        run : RowSource
        n : float
            Rows, or what they weigh.
        provenance, extra : dict
            Of the whole.
        parts : sequence of (n, provenance)
            Of each part.
        """
        shift = self.shift()
        if shift is None:
            raise CorruptionError(f"the shift of the Gram {self._name} has changed on disk")
        shifts = [shift[k] for k in range(len(self.columns))]
        try:
            for group, (size, origin) in zip(self._part_groups(), parts, strict=True):
                total = self._sums(group)
                write_header(
                    group, self.columns, size, shifts, total, origin, 0, None, self._blocks
                )
            total = self._sums(self.group)
        except CorruptionError:
            self._forget()
            raise
        columns = self.columns
        write_header(
            self.group, columns, n, shifts, total, provenance, self.parts, extra, self._blocks
        )
        found = read_gram(self.group, self._name, memory=0)
        found.run = run
        return found

    def _sums(self, group: zarr.Group) -> list[np.ndarray]:
        columns = range(len(self.columns))
        return [read_array(group, f"sum_{k}", slice(None), self._name) for k in columns]
