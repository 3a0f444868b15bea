"""Parts of a Gram: groups of samples whose statistics are kept apart, for folds and jackknives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from actstore.errors import GramError
from actstore.grams.source import RowSource

MOST = 512


@dataclass(frozen=True)
class Parts:
    """Which part each row belongs to.

    Attributes
    ----------
    labels : tuple of str
        One for each part.
    numbers : (n_samples,) intp
        Part of each row in view.
    """

    labels: tuple[str, ...]
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> list[int]:
        """Rows of each part."""
        return np.bincount(self.numbers, minlength=len(self)).tolist()

    def digest(self) -> str:
        """SHA-256 of labels and membership."""
        text = "\0".join(self.labels).encode() + b"\0\0"
        return hashlib.sha256(text + self.numbers.astype("<i8").tobytes()).hexdigest()


def make_parts(run: RowSource, by: Any, seed: int = 0) -> Parts:
    """Divide a run's rows into parts.

    Parameters
    ----------
    run : RowSource
        With a ``coordinate(name)``, as a Run has, unless `by` is an array.
    by : int, str, (str, int) or (n_samples,) array
        ``10``: ten folds of whole documents; ``("article", 10)``: of whole articles, a sample
        coordinate; ``"document"`` or any other coordinate: a part for each of its values; an
        array: the part of each row.
    seed : int
        Of the shuffle that deals groups out to folds.

    Raises
    ------
    GramError
        Fewer than two parts, too many, or not a way to divide.
    """
    if isinstance(by, str):
        labels, numbers = np.unique(_coordinate(run, by), return_inverse=True)
        if len(labels) > MOST:
            raise GramError(
                f"parts={by!r} would keep {len(labels):,} Grams, at most {MOST} are allowed; "
                f"parts=({by!r}, 20) deals its values out to 20 folds"
            )
    elif isinstance(by, int | np.integer) and not isinstance(by, bool):
        labels, numbers = _folds(_coordinate(run, "document"), "document", int(by), seed)
    elif isinstance(by, tuple) and len(by) == 2 and isinstance(by[0], str):
        labels, numbers = _folds(_coordinate(run, by[0]), by[0], int(by[1]), seed)
    elif isinstance(by, np.ndarray | list):
        values = np.asarray(by)
        if values.shape != (run.n_samples,):
            raise GramError(
                f"parts is an array of shape {values.shape}, but {run.model}/{run.corpus} has "
                f"{run.n_samples:,} samples in view: give the part of each"
            )
        labels, numbers = np.unique(values, return_inverse=True)
    else:
        raise GramError(
            f"parts={by!r} is not known: give a number of folds, a sample coordinate, "
            "(coordinate, number of folds), or an array with the part of each sample"
        )
    if not 2 <= len(labels) <= MOST:
        raise GramError(f"parts={by!r} gives {len(labels)} parts; from 2 to {MOST} are allowed")
    return Parts(tuple(map(str, labels)), numbers.astype(np.intp))


def _folds(values: np.ndarray, name: str, folds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups of equal value shuffled and dealt out in turn."""
    groups, members = np.unique(values, return_inverse=True)
    if folds > len(groups):
        raise GramError(
            f"{folds} folds asked for, but there are {len(groups)} values of {name} in view"
        )
    fold = np.empty(len(groups), np.intp)
    fold[np.random.default_rng(seed).permutation(len(groups))] = np.arange(len(groups)) % max(
        folds, 1
    )
    return np.arange(folds), fold[members]


def _coordinate(run: RowSource, name: str) -> np.ndarray:
    find = getattr(run, "coordinate", None)
    if find is None:
        raise GramError(
            f"{run.model}/{run.corpus} has no sample coordinates: give parts as an array with the "
            "part of each sample"
        )
    return np.asarray(find(name))
