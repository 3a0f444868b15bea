"""Choosing samples by their coordinates, and layers by their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from actstore.errors import SelectionError, SiteError
from actstore.wording import count


def coordinate_mask(name: str, values: np.ndarray, choice: Any) -> np.ndarray:
    """(n,) bool: where a coordinate is a value, one of several, or in a slice.

    Parameters
    ----------
    choice : scalar, list, array or slice
        A slice takes both of its ends, as xarray's label slices do.

    Raises
    ------
    SelectionError
        Nothing matches, or the choice cannot be compared with the coordinate.
    """
    try:
        if isinstance(choice, slice):
            if choice.step is not None:
                raise SelectionError(f"{name}={choice}: a slice of labels has no step")
            mask = np.ones(values.shape, bool)
            if choice.start is not None:
                mask &= np.asarray(values >= choice.start, bool)
            if choice.stop is not None:
                mask &= np.asarray(values <= choice.stop, bool)
        elif np.ndim(choice) == 0:
            item = choice.item() if isinstance(choice, np.ndarray | np.generic) else choice
            mask = np.asarray(values == item, bool)
        else:
            wanted = np.asarray(choice)
            mask = np.isin(values, wanted.astype(object) if values.dtype == object else wanted)
    except TypeError:
        raise SelectionError(
            f"{name}={choice!r} cannot be compared with {name}, which is {values.dtype}"
        ) from None
    if not mask.any():
        raise SelectionError(
            f"{name}={choice!r} matches none of the {count(values.size, 'sample')} in view"
        )
    return mask


def sample_numbers(choice: Any, n: int) -> slice | np.ndarray:
    """A positional choice of samples as a slice with step 1 or increasing numbers.

    Parameters
    ----------
    choice : int, slice, (k,) ints or (n,) bool
        Arrays may also be xarray's.
    """
    if isinstance(choice, slice):
        start, stop, step = choice.indices(n)
        if step == 1:
            return slice(start, max(start, stop))
        return np.arange(n)[choice]
    numbers = np.asarray(choice)
    if numbers.dtype == bool:
        if numbers.shape != (n,):
            raise SelectionError(
                f"a mask of shape {numbers.shape} for {count(n, 'sample')} in view"
            )
        return np.flatnonzero(numbers)
    if numbers.size == 0:
        return np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim > 1:
        raise SelectionError(
            f"samples are chosen by a slice, whole numbers or a boolean mask, not {choice!r}"
        )
    numbers = np.atleast_1d(numbers).astype(np.int64)
    return np.where((numbers < 0) & (numbers >= -n), numbers + n, numbers)


def narrowed(
    sites: Mapping[str, list[int]],
    dims: Mapping[str, tuple[str, int]],
    dim: str,
    choice: Any,
    name: str,
) -> dict[str, list[int]]:
    """Sites with only the chosen layers or blocks; sites on the other dim stay as they are.

    Parameters
    ----------
    sites : dict of str to list of int
        Layers in view.
    dims : dict of str to (dim, size)
        What each site's first axis counts.
    choice : int, list of int or slice
        Absolute numbers; negative ones count from the end, a slice takes both ends.
    name : str
        The run's, for the error's text.

    Raises
    ------
    SiteError
        A number that no site in view has.
    """
    concerned = [site for site in sites if dims[site][0] == dim]
    if not concerned:
        raise SiteError(f"{dim}={choice!r} asked for, but {name} has no site with {dim}s in view")
    result: dict[str, list[int]] = {}
    found: set[int] = set()
    asked: set[int] = set()
    for site in sites:
        if site not in concerned:
            result[site] = sites[site]
            continue
        size = dims[site][1]
        if isinstance(choice, slice):
            low = 0 if choice.start is None else _absolute(choice.start, size)
            high = size - 1 if choice.stop is None else _absolute(choice.stop, size)
            kept = [n for n in sites[site] if low <= n <= high][:: choice.step or 1]
        else:
            wanted = {_absolute(number, size) for number in np.atleast_1d(choice).tolist()}
            kept = [number for number in sites[site] if number in wanted]
            asked |= wanted
        found |= set(kept)
        if kept:
            result[site] = kept
    missing = sorted(asked - found)
    if missing or not found:
        have = sorted({n for site in concerned for n in sites[site]})
        shown = f"{dim} {missing[0]}" if missing else f"{dim}={choice!r}"
        raise SiteError(
            f"{shown} asked for, but {name} has {dim}s {spans(have)} "
            f"({', '.join(concerned)}) in view"
        )
    return result


def _absolute(number: int, size: int) -> int:
    return int(number) + size if number < 0 else int(number)


def spans(numbers: list[int]) -> str:
    """``0…12`` or ``0, 3, 6…8``: increasing numbers in words."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}…{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)


def held_out(groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """(n,) bool: samples of whole groups, at least `fraction` of all samples.

    The groups' values are sorted, shuffled by `seed` (NumPy's default generator), and taken
    until the samples they hold reach `fraction` of all.

    Raises
    ------
    SelectionError
        A fraction outside (0, 1), or too few groups to leave some on each side.
    """
    if not 0 < fraction < 1:
        raise SelectionError(f"fraction {fraction!r} asked for, but it must lie between 0 and 1")
    values, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if values.size < 2:
        raise SelectionError(
            f"the samples in view form {values.size} group{'s' * (values.size != 1)}: a split "
            "needs at least two"
        )
    order = np.random.default_rng(seed).permutation(values.size)
    reached = np.cumsum(counts[order]) >= fraction * groups.size
    n_taken = min(int(np.argmax(reached)) + 1, values.size - 1)
    chosen = np.zeros(values.size, bool)
    chosen[order[:n_taken]] = True
    return chosen[inverse]
