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
from actstore.grams.pairs import resolve_pairs
from actstore.grams import Gram, gram
from actstore.grams.columns import select_columns
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

    A run's Gram of all layers is made where that is the cheaper way and fits; else one Gram for
    every two or three layers: a joint Gram with parts is large, and adjacent layers need few of
    its blocks.
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
    bar = tqdm(
        shares,
        desc="layers",
        unit="Gram",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    for share in bar:
        layers = sorted({layer for pair in share for layer in pair})
        whole = len(layers) == len(keys) and division is None
        yield Window(
            gram(on, sites=site, layers=layers, parts=division, cache=whole, progress=False), share
        )


def grouped(pairs: list[tuple[int, int]], blocks: int) -> list[list[tuple[int, int]]]:
    """Pairs that share a Gram, which may have so many blocks (at least three).

    Examples
    --------
    >>> grouped([(0, 1), (1, 2), (2, 3)], 6)
    [[(0, 1), (1, 2), (2, 3)]]
    >>> grouped([(k, k + 1) for k in range(12)], 6)[:2]
    [[(0, 1), (1, 2)], [(2, 3), (3, 4)]]
    """
    n = len({layer for pair in pairs for layer in pair})
    together = n * (n + 1) // 2
    if together <= min(blocks, 3 * len(pairs)):
        return [pairs]
    most = 3 if blocks >= 6 else 2
    groups: list[list[tuple[int, int]]] = []
    for pair in pairs:
        held = {layer for other in groups[-1] for layer in other} if groups else set()
        if groups and len(held | set(pair)) <= most:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups
