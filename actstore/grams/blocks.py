"""Blocks of a Gram that are found when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np


class Chosen(Mapping[tuple[int, int], np.ndarray]):
    """Blocks found one by one, when they are used.

    Parameters
    ----------
    find : callable
        What gives a block, from the arguments in `places`.
    places : mapping from pair to arguments
    """

    def __init__(
        self, find: Callable[..., np.ndarray], places: Mapping[tuple[int, int], tuple[Any, ...]]
    ) -> None:
        self._find = find
        self._places = places

    def __getitem__(self, pair: tuple[int, int]) -> np.ndarray:
        return self._find(*self._places[pair])

    def __contains__(self, pair: object) -> bool:
        return pair in self._places

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
