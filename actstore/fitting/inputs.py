"""What fits and scores take, checked once at the door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from actstore.errors import FitError
from actstore.grams.computing import gram as compute
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


def as_gram(
    on: Gram | RowSource,
    sites: str | Sequence[str] | None,
    layers: Sequence[Any] | None,
    progress: bool | None,
    parts: int | None = None,
    weights: Any = None,
    pairs: str | Sequence[Any] | None = None,
) -> Gram:
    """The Gram given, or that of the run given.

    Parameters
    ----------
    parts : int, optional
        Parts are needed: a run's documents are dealt out to so many, a Gram must have its own.
    weights : optional
        Of a run's rows; a Gram has its own.
    pairs : optional
        All that is needed of a run; a Gram has what it has.
    """
    if isinstance(on, Gram):
        if weights is not None:
            raise FitError(
                f"{on!r} has its rows weighted or not already: give the run, or take "
                "gram(run, weights=...)"
            )
        if parts is not None and len(on.parts) < 2:
            raise FitError(
                f"{on!r} keeps no parts: compute it with gram(run, parts={parts}), or give the run"
            )
        return on
    if not hasattr(on, "row_blocks"):
        raise FitError(f"a Run or a Gram is needed, not {type(on).__name__}")
    return compute(
        on,
        sites=sites,
        layers=layers,
        pairs=pairs,
        parts=parts,
        weights=weights,
        progress=progress,
    )


def one_ridge(ridge: Any) -> float:
    """α as a float.

    Raises
    ------
    FitError
        Not a number ≥ 0.
    """
    if isinstance(ridge, str | bool) or not np.isscalar(ridge):
        raise FitError(f"ridge={ridge!r}: α is a number ≥ 0")
    value = float(ridge)  # type: ignore[arg-type]
    if not (np.isfinite(value) and value >= 0):
        raise FitError(f"ridge={ridge!r}: α is a number ≥ 0")
    return value


def ridge_values(ridges: Iterable[Any]) -> tuple[float, ...]:
    """Distinct values of α, increasing.

    Raises
    ------
    FitError
        None given, or one that is not a number ≥ 0.
    """
    if isinstance(ridges, str) or not isinstance(ridges, Iterable):
        raise FitError(f"ridges={ridges!r}: give a list of numbers ≥ 0")
    values = tuple(sorted({one_ridge(ridge) for ridge in ridges}))
    if not values:
        raise FitError("no ridge values given: give a list of numbers ≥ 0")
    return values


def by_source(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Targets of each source."""
    targets: dict[int, list[int]] = {}
    for source, target in places:
        targets.setdefault(source, []).append(target)
    return targets


def shared_out(
    targets: Mapping[int, Sequence[int]], shares: int
) -> list[tuple[int, Sequence[int]]]:
    """Each source with its targets, those with most first; what is left over when every share has
    as many sources is cut up, so that no share waits for another."""
    order = sorted(targets, key=lambda source: -len(targets[source]))
    whole = len(order) // shares * shares
    jobs: list[tuple[int, Sequence[int]]] = [(source, targets[source]) for source in order[:whole]]
    for source in order[whole:]:
        step = -(-len(targets[source]) // shares)
        jobs += [
            (source, targets[source][k : k + step]) for k in range(0, len(targets[source]), step)
        ]
    return jobs
