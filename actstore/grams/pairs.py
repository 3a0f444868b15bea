"""Which pairs of layers, by name or one by one, and the blocks of a Gram that they take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from actstore.errors import FitError
from actstore.grams.columns import Columns, Key, describe_layers

Pair = tuple[Key, Key]
NAMED = ("all", "adjacent", "to_last", "ordered")


def resolve_pairs(columns: Columns, pairs: str | Iterable[Any]) -> list[tuple[int, int]]:
    """Places (source, target) among the columns, sorted, each once.

    Parameters
    ----------
    columns : Columns
    pairs : str or iterable of (source, target)
        ``"all"``: every source before its target; ``"adjacent"``: each to the next;
        ``"to_last"``: each to the last; ``"ordered"``: all that differ, backwards too.

    Raises
    ------
    FitError
        An unknown name, no pairs, or an entry that is not a pair.
    SiteError
        A layer that is not there.
    """
    n = len(columns)
    if isinstance(pairs, str):
        check_name(pairs)
        if n < 2:
            raise FitError(f"pairs={pairs!r} needs two layers or more, but there is one: {columns}")
        found = {
            "all": [(i, j) for i in range(n) for j in range(i + 1, n)],
            "adjacent": [(i, i + 1) for i in range(n - 1)],
            "to_last": [(i, n - 1) for i in range(n - 1)],
            "ordered": [(i, j) for i in range(n) for j in range(n) if i != j],
        }[pairs]
        return found
    chosen = set()
    entries: list[Any] = list(pairs)
    for pair in entries:
        try:
            source, target = pair
        except (TypeError, ValueError):
            raise FitError(f"{pair!r} is not a pair (source, target)") from None
        chosen.add((columns.index(source), columns.index(target)))
    if not chosen:
        raise FitError("no pairs asked for: give (source, target) layers, or pairs='all'")
    return sorted(chosen)


def needed_blocks(
    columns: Columns, pairs: str | Iterable[Any] | None
) -> frozenset[tuple[int, int]] | None:
    """Blocks (i ≤ j) for maps between these pairs and their scores: each pair's own, and every
    column's with itself, which alone is "within"; None where that is all of them."""
    if pairs is None or (isinstance(pairs, str) and pairs in ("all", "ordered")):
        return None
    n = len(columns)
    found = {(k, k) for k in range(n)}
    if pairs != "within":
        found |= {(min(pair), max(pair)) for pair in resolve_pairs(columns, pairs)}
    return None if len(found) == n * (n + 1) // 2 else frozenset(found)


def check_name(pairs: str) -> None:
    """FitError for a name that is not known."""
    if pairs not in NAMED:
        raise FitError(
            f"pairs={pairs!r} is not known: choose one of {', '.join(NAMED)}, or give a list "
            "of (source, target)"
        )


def layers_of(pairs: str | Iterable[Any]) -> list[int] | None:
    """Layers that explicit pairs of layer numbers need; None where all may be needed."""
    if isinstance(pairs, str):
        check_name(pairs)  # before any row is read
        return None
    flat: list[Any] = [
        key for pair in pairs if isinstance(pair, tuple | list) and len(pair) == 2 for key in pair
    ]
    if not flat or not all(isinstance(key, int) and key >= 0 for key in flat):
        return None
    return sorted(set(flat))


def missing_pair(columns: Columns, place: tuple[int, int], there: Iterable[tuple[int, int]]) -> str:
    """One line: pair asked for, pairs there are."""
    keys, there = columns.keys(), list(there)
    source, target = keys[place[0]], keys[place[1]]
    targets = [keys[j] for i, j in there if i == place[0]]
    sources = [keys[i] for i in sorted({i for i, _ in there})]
    held = f"from {source} to {_list(targets)}" if targets else f"from {_list(sources)}"
    return f"no map {source} → {target} was fitted: there are maps {held}"


def _list(keys: Sequence[Key]) -> str:
    """Layers, shortened where they follow each other; the first of many."""
    if all(isinstance(key, int) for key in keys):
        return describe_layers([key for key in keys if isinstance(key, int)])
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    return ", ".join(map(str, keys[:8])) + more
