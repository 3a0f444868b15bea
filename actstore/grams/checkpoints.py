"""Sums so far, kept beside the run while a long computation goes on."""

from __future__ import annotations

import json
import time
import uuid
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from actstore.errors import ActstoreError, CorruptionError, GramError
from actstore.grams.caching import cache_group
from actstore.grams.columns import Columns
from actstore.grams.files import FORMAT, read_array, write_array
from actstore.grams.kernel import Partial, Tile
from actstore.grams.source import RowSource

EVERY = 300.0
"""Seconds of work that an interruption may cost."""
SHARE = 50
"""Work that lies between two checkpoints, in times what the writing of one takes."""
CERTAIN_RATE = 1e10
"""Operations a second that any machine reaches: the first checkpoint rather comes early."""
PREFIX = "so_far_"


@dataclass(frozen=True)
class SumsSoFar:
    """What a checkpoint holds.

    Attributes
    ----------
    rows : int
        The first rows of the run, which are in.
    shift : dict of int to (width,) float64
    partial : Partial
        Their sums, in the tiles that were asked for.
    """

    rows: int
    shift: dict[int, np.ndarray]
    partial: Partial


class Checkpoints:
    """Checkpoints of one Gram in its cache group, a group each, of which the newest stays.

    A group's arrays have checksums, and its header is written last: one whose writing was
    interrupted, or whose bytes have changed, does not count. No two ever have one name, so that
    two processes at the same Gram do not mix their sums.

    Parameters
    ----------
    run : RowSource
    key : dict
        The Gram's key.
    columns : Columns
    every : float
        Seconds between two; more where writing one takes more than a fiftieth of that.
    number : int
        Pass that they are of.
    """

    def __init__(
        self, run: RowSource, key: dict[str, Any], columns: Columns, every: float, number: int = 0
    ) -> None:
        self._run, self._key, self._columns = run, key, columns
        self._every = every
        self._prefix = f"{PREFIX}{number}_"
        self._last = time.monotonic()

    def of_pass(self, number: int) -> Checkpoints:
        """Those of another pass."""
        return Checkpoints(self._run, self._key, self._columns, self._every, number)

    def read(self, tiles: Sequence[Tile], parts: int, starts: Iterable[int]) -> SumsSoFar | None:
        """The newest from which rows can go on at one of `starts`; None where there is none."""
        self._last = time.monotonic()
        group = cache_group(self._run, self._key, create=False)
        if group is None:
            return None
        allowed = set(starts)
        for name in sorted(self._names(group), key=_rows_of, reverse=True):
            found = group.get(name)
            if _rows_of(name) not in allowed or not isinstance(found, zarr.Group):
                continue
            try:
                if read_so_far := self._read(found, name, tiles, parts):
                    return read_so_far
            except (CorruptionError, GramError) as error:
                warnings.warn(
                    f"a checkpoint of the Gram cannot be used and is left out: {error}",
                    stacklevel=4,
                )
        return None

    def _read(
        self, group: zarr.Group, name: str, tiles: Sequence[Tile], parts: int
    ) -> SumsSoFar | None:
        """None where its writing was interrupted."""
        if "header" not in group:
            return None
        header = read_array(group, "header", slice(None), name).tobytes()
        if not any(header):
            return None
        if header != self._header(_rows_of(name), parts):
            raise GramError(f"{name} was written by another version")
        columns = self._columns

        def values(array: str) -> np.ndarray:
            return read_array(group, array, slice(None), name)

        partial = Partial({}, {})
        for part in range(parts):
            for tile in tiles:
                across = range(tile.start, tile.stop)
                width = sum(columns[k].width for k in across)
                total = np.empty((columns[tile.row].width, width))
                at = 0
                for k in across:
                    total[:, at : at + columns[k].width] = values(f"moments_{part}_{tile.row}_{k}")
                    at += columns[k].width
                partial.tiles[part, tile] = total
                if tile.diagonal:
                    partial.sums[part, tile.row] = values(f"sum_{part}_{tile.row}")
        cuts = np.cumsum([column.width for column in columns])[:-1]
        shift = dict(enumerate(np.split(values("shift"), cuts)))
        return SumsSoFar(_rows_of(name), shift, partial)

    def batches(self, done: int, seconds: float, operations: float) -> int:
        """How many batches to go to the next checkpoint.

        Parameters
        ----------
        done, seconds
            Batches of the last stretch and what they took; 0 at first.
        operations : float
            Of one batch.
        """
        if not done:
            slow = getattr(self._run, "sequential", False)  # what makes the rows sets the pace
            return 1 if slow else max(1, int(self._every * CERTAIN_RATE / operations))
        return max(1, int(min(done * self._every / max(seconds, 1e-9), 4 * done)))

    def due(self) -> bool:
        """Whether enough was done since the last one."""
        return time.monotonic() - self._last >= self._every / 2

    def write(self, rows: int, shift: dict[int, np.ndarray], partial: Partial, parts: int) -> None:
        """Keep the sums of the first `rows` rows, and remove what was kept before.

        Where that fails there is a warning, and nothing is kept from then on.
        """
        started = time.monotonic()
        name = f"{self._prefix}{rows}_{uuid.uuid4().hex[:12]}"
        parent = None
        try:
            parent = cache_group(self._run, self._key, create=True)
            if parent is None:
                return
            before = [old for old in self._names(parent) if _rows_of(old) <= rows]
            group = parent.create_group(name)
            write_array(group, "shift", np.concatenate([shift[k] for k in sorted(shift)]))
            for part, (i, j), values in partial.blocks(self._columns):
                write_array(group, f"moments_{part}_{i}_{j}", values)
            for (part, k), values in partial.sums.items():
                write_array(group, f"sum_{part}_{k}", values)
            write_array(group, "header", np.frombuffer(self._header(rows, parts), np.uint8))
            for old in before:
                del parent[old]
        except (ActstoreError, OSError) as error:
            warnings.warn(f"no checkpoint of the Gram can be kept: {error}", stacklevel=4)
            self._every = float("inf")
            with suppress(ActstoreError, OSError, KeyError):
                del parent[name]  # type: ignore[union-attr]
            return
        self._last = time.monotonic()
        self._every = max(self._every, SHARE * (self._last - started))

    def clear(self) -> None:
        """Remove all of this pass."""
        group = cache_group(self._run, self._key, create=False)
        for name in [] if group is None else self._names(group):
            del group[name]  # type: ignore[union-attr]

    def _names(self, group: zarr.Group) -> list[str]:
        return [name for name in group.group_keys() if name.startswith(self._prefix)]

    def _header(self, rows: int, parts: int) -> bytes:
        return json.dumps({"format": FORMAT, "rows": rows, "parts": parts}).encode()


def _rows_of(name: str) -> int:
    return int(name.split("_")[-2])
