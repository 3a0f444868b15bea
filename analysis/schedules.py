"""Schedules of blocks that are run and stretches that are jumped over with a fitted map.

"Jump to Conclusions" (arXiv 2303.09435) §6. A schedule is a path from layer 0 to layer L whose
steps are real blocks l → l+1 or jumps i → j; `analysis.alternation` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.errors import AnalysisError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Jumps (i, j), i < j, in order and apart; every block outside them is run.

    Attributes
    ----------
    n_blocks : int
    jumps : tuple of (source layer, target layer)
    family : str
        What kind of schedule it is, for labels.
    """

    n_blocks: int
    jumps: tuple[tuple[int, int], ...] = ()
    family: str = "custom"

    def __post_init__(self) -> None:
        at = 0
        for source, target in self.jumps:
            if not at <= source < target <= self.n_blocks:
                raise AnalysisError(
                    f"jump {source} → {target} among {self.jumps}: jumps go upwards within layers "
                    f"0…{self.n_blocks}, one after the other"
                )
            at = target

    @property
    def real(self) -> int:
        """Blocks that are run."""
        return self.n_blocks - sum(target - source for source, target in self.jumps)

    @property
    def text(self) -> str:
        """The schedule in words: ``2 real, 2→4, 3 real``."""
        steps, at = [], 0
        for source, target in (*self.jumps, (self.n_blocks, self.n_blocks)):
            steps += [f"{source - at} real"] if source > at else []
            steps += [f"{source}→{target}"] if target > source else []
            at = target
        return ", ".join(steps)

    def product(self, r2: xr.DataArray) -> float:
        """Product over the jumps of max(r², 0), r2 (source, target)."""
        table = _table(r2, self.n_blocks)
        return float(np.prod([table[jump] for jump in self.jumps]))


def round_robin(n_blocks: int, real: int, jump: int, *, first: str = "real") -> Schedule:
    """Run `real` blocks and jump over `jump`, again and again; or the jump first.

    Parameters
    ----------
    n_blocks, real, jump : int
        real + jump must divide the number of blocks.
    first : "real" or "jump"
    """
    period = real + jump
    if real < 0 or jump < 1 or n_blocks % period or first not in ("real", "jump"):
        raise AnalysisError(
            f"round robin of {real} real blocks and jumps over {jump}, {first!r} first: their sum "
            f"must divide the {n_blocks} blocks, and first is 'real' or 'jump'"
        )
    offset = real if first == "real" else 0
    jumps = tuple((at + offset, at + offset + jump) for at in range(0, n_blocks, period))
    return Schedule(n_blocks, jumps, f"round robin, {first} first")


def round_robins(n_blocks: int, periods: Sequence[int] | None = None) -> list[Schedule]:
    """All weighted round robins in both orders, of all periods that divide the blocks."""
    divisors = [p for p in range(2, n_blocks + 1) if n_blocks % p == 0]
    chosen = divisors if periods is None else list(periods)
    return [
        round_robin(n_blocks, real, period - real, first=first)
        for period in chosen
        for real in range(1, period)
        for first in ("real", "jump")
    ]


def exits(n_blocks: int, counts: Sequence[int]) -> list[Schedule]:
    """Run the first n blocks, then one jump to the end: a fixed early exit."""
    return [Schedule(n_blocks, ((n, n_blocks),), "one jump to the end") for n in counts]


def random_schedules(
    n_blocks: int, counts: Sequence[int], *, draws: int = 3, seed: int = 0
) -> list[Schedule]:
    """Which n blocks are run is drawn uniformly; each stretch between them is one jump.

    A draw depends on the seed, n and its number alone.
    """
    found = []
    for real in counts:
        for draw in range(draws):
            rng = np.random.default_rng([seed, n_blocks, real, draw])
            kept = np.zeros(n_blocks, bool)
            kept[rng.choice(n_blocks, real, replace=False)] = True
            found.append(Schedule(n_blocks, tuple(_stretches(kept)), "random"))
    return found


def best_by_r2(r2: xr.DataArray, n_blocks: int, counts: Sequence[int]) -> list[Schedule]:
    """For each n the schedule with n real blocks whose jumps' r² have the greatest product.

    Dynamic programme ("Jump to Conclusions" §6): with V(i, n) the greatest product on the way
    from layer 0 to layer i with n blocks run,
    V(i, n) = max(V(i−1, n−1), max over k < i of V(k, n)·max(r²_{k→i}, 0)), V(0, 0) = 1.
    Where products tie (at zero, say), the real block and then the longest jump is taken.

    Parameters
    ----------
    r2 : DataArray (source, target)
        Of the maps, on samples other than the final evaluation's, all pairs i < j.
    n_blocks : int
    counts : sequence of int
        The n, 0 ≤ n ≤ `n_blocks`.

    Raises
    ------
    AnalysisError
        A pair without r², or an n out of range.
    """
    table = _table(r2, n_blocks)
    most = max(counts, default=0)
    if min(counts, default=0) < 0 or most > n_blocks:
        raise AnalysisError(f"{list(counts)} real blocks asked for; there are 0…{n_blocks}")
    value = np.full((n_blocks + 1, most + 1), -np.inf)
    came = np.full((n_blocks + 1, most + 1), -1)
    value[0, 0] = 1.0
    for layer in range(1, n_blocks + 1):
        for real in range(min(layer, most) + 1):
            if real and value[layer - 1, real - 1] > -np.inf:
                value[layer, real], came[layer, real] = value[layer - 1, real - 1], layer - 1
            for source in range(layer):
                if value[source, real] == -np.inf:
                    continue
                product = value[source, real] * table[source, layer]
                if product > value[layer, real]:
                    value[layer, real], came[layer, real] = product, -2 - source
    found = []
    for real in counts:
        jumps, layer, left = [], n_blocks, real
        while layer:
            step = int(came[layer, left])
            if step >= 0:
                layer, left = step, left - 1
            else:
                jumps.append((-2 - step, layer))
                layer = -2 - step
        found.append(Schedule(n_blocks, tuple(reversed(jumps)), "r² informed"))
    return found


def _stretches(kept: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Maximal runs of blocks that are not kept, as jumps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], ~kept, [0]]).astype(np.int8)))
    yield from map(tuple, edges.reshape(-1, 2).tolist())


def _table(r2: xr.DataArray, n_blocks: int) -> Any:
    """max(r², 0) of every pair i < j as a square array."""
    layers = range(n_blocks + 1)
    held = r2.transpose("source", "target")
    sources, targets = held.source.values.tolist(), held.target.values.tolist()
    table = np.full((n_blocks + 1, n_blocks + 1), np.nan)
    for source in layers:
        for target in range(source + 1, n_blocks + 1):
            if source in sources and target in targets:
                at = sources.index(source), targets.index(target)
                table[source, target] = max(float(held.values[at]), 0.0)
            if np.isnan(table[source, target]):
                raise AnalysisError(
                    f"no r² of {source} → {target}; all pairs i < j of layers 0…{n_blocks} are "
                    "needed, as analysis.r2.heat_maps(...).r2.sel(shortcut='mat') has them"
                )
    return table
