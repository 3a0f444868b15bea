"""Grams of a few layers at a time: pairs of layers with parts, in memory that stays small."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError
from actstore.grams import Gram, gram
from actstore.grams.columns import select_columns
from actstore.grams.pairs import resolve_pairs
from analysis.comparing import groups_of

if TYPE_CHECKING:
    from actstore.store import Run

MEMORY = 2 * 2**30


@dataclass(frozen=True)
class Window:
    """Some pairs of layers, and a Gram that has them.

    Attributes
    ----------
    moments : Gram
        With parts, where intervals are wanted.
    pairs : list of (source, target)
    """

    moments: Gram
    pairs: list[tuple[int, int]]


def row_parts(
    on: Run | Gram | None, cluster: str | None, parts: int, seed: int
) -> NDArray[np.intp] | None:
    """The group of each sample of a run, whole clusters dealt out at random; None: no groups."""
    if on is None or isinstance(on, Gram):
        return None
    labels = groups_of(on, cluster)
    clusters = np.arange(on.n_samples) if labels is None else labels
    values, members = np.unique(clusters, return_inverse=True)
    count = min(parts, len(values))
    if count < 2:
        return None
    deal = np.empty(len(values), np.intp)
    deal[np.random.default_rng(seed).permutation(len(values))] = np.arange(len(values)) % count
    return deal[members]


def windows(
    on: Run | Gram,
    pairs: str | Iterable[Any],
    site: str,
    division: NDArray[np.intp] | None,
    memory: int,
    progress: bool | None,
) -> Iterator[Window]:
    """The pairs of layers with the moments they need, a Gram given or a few layers at a time.

    A run's Gram has the moments of these pairs alone; where that with its parts is more than
    `memory`, there are several, of some pairs each.
    """
    if isinstance(on, Gram):
        keys = on.layers
        if len(on.columns.sites) != 1:
            raise AnalysisError(
                f"{on!r} has several sites; take one with .select([(site, layer), ...])"
            )
        yield Window(on, [(keys[x], keys[y]) for x, y in resolve_pairs(on.columns, pairs)])  # type: ignore[misc]
        return
    columns = select_columns(on, site, None)
    keys = columns.keys()
    wanted: list[tuple[int, int]] = [(keys[x], keys[y]) for x, y in resolve_pairs(columns, pairs)]  # type: ignore[misc]
    copies = 1 if division is None else int(division.max()) + 2
    block = 8 * columns[0].width ** 2 * copies
    shares = list(grouped(wanted, memory // block))
    one = len(shares) == 1  # has a bar of its own
    bar = tqdm(
        shares,
        desc="layers",
        unit="Gram",
        disable=True if one else None if progress is None else not progress,
        file=sys.stderr,
    )
    for share in bar:
        moments = gram(
            on,
            sites=site,
            layers=sorted({layer for pair in share for layer in pair}),
            pairs=share,
            parts=division,
            cache=one and division is None,
            progress=progress if one else False,
        )
        yield Window(moments, share)


def grouped(pairs: list[tuple[int, int]], blocks: int) -> list[list[tuple[int, int]]]:
    """Pairs that share a Gram, which may have so many blocks (a pair's three at least).

    Examples
    --------
    >>> grouped([(0, 1), (1, 2), (2, 3)], 7)
    [[(0, 1), (1, 2), (2, 3)]]
    >>> grouped([(k, k + 1) for k in range(12)], 6)[:2]
    [[(0, 1), (1, 2)], [(2, 3), (3, 4)]]
    """
    groups: list[list[tuple[int, int]]] = []
    for pair in pairs:
        if groups and _blocks([*groups[-1], pair]) <= blocks:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups


def _blocks(pairs: list[tuple[int, int]]) -> int:
    """Blocks of a Gram of these pairs: their own, and each layer's with itself."""
    return len({layer for pair in pairs for layer in pair}) + len(set(pairs))
