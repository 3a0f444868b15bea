"""The sketch-whitened way to a Gram, and the guard that makes it safe.

It took 0.8 of float64's time for 31 × 576 × 9,840 real rows, 1.0 for 13 × 768 × 12,000 and 0.9 for
25 × 1,024 × 10,000, and more than that for fewer rows, too little to give up float64's digits for:
"auto" does not choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from actstore.grams.arithmetic import Recipe
from actstore.grams.columns import Columns
from actstore.grams.kernel import Partial, Tile
from actstore.grams.plans import Task
from actstore.grams.tiling import columns_of
from actstore.grams.whitening import GUARD, Whitening, refreshed, restore, spectra

Run = Callable[[Sequence[Task], Recipe, bool], Partial]


@dataclass
class Sketched:
    """Float32 products of whitened rows, with their guard.

    Every column block's whitened moments tell how good its whitening is. Where their condition is
    above `GUARD` it is whitened once more, by these moments, and its products are made again;
    where that does not help, and where there was nothing to whiten by, they are made in float64.

    Parameters
    ----------
    columns : Columns
    recipe : Recipe
        What is done to the rows but for the whitening.
    whitening : Whitening
    n : float
        Rows, or what they weigh.
    stop : int
        Number of row blocks.
    run : callable
        What makes the tiles of some tasks by a recipe; told whether it is for the first time.
    """

    columns: Columns
    recipe: Recipe
    whitening: Whitening
    n: float
    stop: int
    run: Run
    again: set[int] = field(default_factory=set)
    condition: float = 1.0

    def settle(self, tasks: Sequence[Task]) -> Partial:
        """Whitened tiles of tasks that own every diagonal, once every whitening is good enough or
        given up."""
        if len(self.whitening.unfit) == len(self.columns):
            return Partial({}, {})
        whole = self.run(tasks, self._whitened(), True)
        bad = self._judge(whole, set(range(len(self.columns))) - self.whitening.unfit, True)
        if bad:
            self.again |= bad
            better = self.run(touching(tasks, bad), self._whitened(), False)
            _overwrite(whole, better, self.columns)
            self.whitening.unfit |= self._judge(whole, bad, False)
        return whole

    def settle_diagonals(self) -> None:
        """Settle by the diagonals alone, for what is made in several passes afterwards."""
        blocks = self.columns
        tiles = [Tile(k, k, k + 1) for k in range(len(blocks)) if k not in self.whitening.unfit]
        self.settle([Task((tile,), (tile.row,), 0, self.stop) for tile in tiles])

    def tiles(self, tasks: Sequence[Task], whole: Partial | None = None) -> Partial:
        """Tiles of the rows themselves: from whitened ones, which are used up, or made anew."""
        unfit = self.whitening.unfit
        exact = replace(self.recipe, dtype="float64", bases=None)
        redone = touching(tasks, unfit)
        if _work(redone, self.columns) > _work(tasks, self.columns) / 2:
            first = whole is None or not whole.tiles
            if whole is not None:
                whole.tiles.clear()
            return self.run(tasks, exact, first)
        if whole is None:
            whole = self.run(tasks, self._whitened(), True)
        restore(whole, self.columns, self.whitening.bases)
        if redone:
            _overwrite(whole, self.run(redone, exact, False), self.columns)
        return whole

    def record(self) -> dict[str, Any]:
        """What provenance says of it: blocks that were whitened again, and those in float64."""
        unfit = self.whitening.unfit
        return {
            "rows": self.whitening.rows,
            "seed": self.whitening.seed,
            "condition": self.condition,
            "again": [str(self.columns[k]) for k in sorted(self.again)],
            "float64": [str(self.columns[k]) for k in sorted(unfit)],
        }

    def _whitened(self) -> Recipe:
        return replace(self.recipe, dtype="float32", bases=dict(self.whitening.bases))

    def _judge(self, whole: Partial, chosen: Iterable[int], refresh: bool) -> set[int]:
        """Blocks above the guard, whitened anew where `refresh` says so."""
        bad = set()
        for k, condition, values, vectors in spectra(whole, self.whitening, sorted(chosen), self.n):
            if condition <= GUARD:
                self.condition = max(self.condition, condition)
                continue
            bad.add(k)
            if refresh:
                basis = self.whitening.bases[k]
                self.whitening.bases[k] = refreshed(basis, values, vectors)
        return bad


def touching(tasks: Sequence[Task], chosen: set[int]) -> list[Task]:
    """What of tasks is of pairs with any of the chosen column blocks."""
    found = []
    for task in tasks:
        tiles: list[Tile] = []
        for tile in task.tiles:
            if tile.row in chosen:
                tiles.append(tile)
            else:
                tiles += [
                    Tile(tile.row, k, k + 1) for k in range(tile.start, tile.stop) if k in chosen
                ]
        if tiles:
            found.append(replace(task, tiles=tuple(tiles), columns=columns_of(tiles)))
    return found


def _overwrite(whole: Partial, other: Partial, columns: Columns) -> None:
    """Put another's blocks in the place of those of the same pairs."""
    places = {(part, pair): values for part, pair, values in whole.blocks(columns)}
    for part, pair, values in other.blocks(columns):
        places[part, pair][:] = values


def _work(tasks: Sequence[Task], columns: Columns) -> int:
    return sum(
        columns[tile.row].width * columns[k].width
        for task in tasks
        for tile in task.tiles
        for k in range(tile.start, tile.stop)
    )
