"""Maps that are solved when they are asked for: of a Gram whose maps would not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from actstore.fitting.maps import LinearMap
from actstore.fitting.problem import Factor, Problem
from actstore.grams.threads import available_cores


class SolvedMaps(Mapping[tuple[int, int], LinearMap]):
    """The map of a pair from its block of the Gram, each time it is asked for; of the sources
    asked for last, the factorisations are kept.

    Parameters
    ----------
    problems : mapping from (source place, target place) to Problem
        In the order of the maps.
    rank : int, optional
        Highest rank of a map.
    """

    def __init__(
        self, problems: Mapping[tuple[int, int], Problem], rank: int | None = None
    ) -> None:
        self._problems = dict(problems)
        self._rank = rank
        self._factor = lru_cache(maxsize=available_cores() + 1)(_factor)

    def __getitem__(self, place: tuple[int, int]) -> LinearMap:
        problem = self._problems[place]
        source, target = place
        found = problem.solve(source, [target], self._factor(problem, source))
        problem.warn([(source, found)], stacklevel=3)
        return problem.linear_map(source, target, found, self._rank)

    def __contains__(self, place: object) -> bool:
        return place in self._problems

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._problems)

    def __len__(self) -> int:
        return len(self._problems)


def _factor(problem: Problem, source: int) -> Factor:
    return problem.factor(source)
