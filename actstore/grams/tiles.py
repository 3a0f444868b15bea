"""A Gram larger than memory: on disk as it grows, pass by pass, and read block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr

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
from actstore.grams.weights import Weights


class TiledGram:
    """The blocks of a Gram in a Zarr group, laid out as `write_gram` lays them out.

    The shift is written first and stays. After a pass's blocks and sums an array ``done_<k>`` says
    which pairs they are: a pass counts once that is there, and the Gram once its header is.
    """

    def __init__(self, group: zarr.Group, columns: Columns) -> None:
        self.group = group
        self.columns = columns
        self._name = f"{group.path} of {columns.owner}"
        self._place = {
            pair: (f"moments_{height}x{width}", number)
            for (height, width), pairs in pairs_by_shape(columns).items()
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
        for (height, width), pairs in pairs_by_shape(self.columns).items():
            create_moments(self.group, height, width, len(pairs))
        self._done = []
        write_array(self.group, "shift", np.concatenate([shift[k] for k in sorted(shift)]))
        return shift

    def _forget(self) -> None:
        """Let no pass count."""
        for name in [name for name in self.group.array_keys() if name.startswith("done_")]:
            del self.group[name]

    def has(self, tiles: Sequence[Tile]) -> bool:
        """Whether all pairs of these tiles are on disk."""
        done = set(self._done)
        return all((tile.row, k) in done for tile in tiles for k in range(tile.start, tile.stop))

    def write(self, pass_: Partial) -> None:
        """Put one pass on disk."""
        pairs = []
        for _, pair, values in pass_.blocks(self.columns):
            array, number = self._place[pair]
            self.group[array][number] = values  # type: ignore[index]
            pairs.append(pair)
        for (_, k), values in pass_.sums.items():
            write_array(self.group, f"sum_{k}", values)
        a, b = pairs[0]
        write_array(self.group, f"done_{a}_{b}", np.array(pairs, np.float64))
        self._done += pairs

    def finish(
        self,
        run: RowSource,
        provenance: dict[str, Any],
        extra: dict[str, Any],
        weights: Weights | None = None,
    ) -> Gram:
        """Make the blocks count, and give the Gram whose blocks stay on disk."""
        shift = self.shift()
        try:
            total = [
                read_array(self.group, f"sum_{k}", slice(None), self._name)
                for k in range(len(self.columns))
            ]
        except CorruptionError:
            self._forget()
            raise
        if shift is None:
            raise CorruptionError(f"the shift of the Gram {self._name} has changed on disk")
        shifts = [shift[k] for k in range(len(self.columns))]
        n = run.n_samples if weights is None else float(weights.values.sum())
        write_header(self.group, self.columns, n, shifts, total, provenance, 0, extra)
        found = read_gram(self.group, self._name, memory=0)
        found.run = run
        found.weights = None if weights is None else weights.values
        return found
