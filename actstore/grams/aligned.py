"""Two runs side by side as one source of rows: two models, two settings, or two positions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zarr

from actstore.errors import GramError
from actstore.grams.kernel import READ_AS


@dataclass(frozen=True)
class AlignedBlock:
    """The same rows in either run.

    Attributes
    ----------
    pieces : tuple of row blocks
        One in each run.
    out : slice
        Where the rows stand in the view.
    """

    pieces: tuple[Any, Any]
    out: slice


def align(
    first: Any,
    second: Any,
    *,
    shift: int = 0,
    by: Sequence[str] = ("document", "position"),
    names: tuple[str, str] | None = None,
) -> AlignedRuns:
    """Put the samples that two runs share side by side, for one Gram over both.

    ``gram(align(a, b))`` holds every moment between layers of `a` and layers of `b`: maps between
    two models on the same tokens, or between a model's two settings. ``align(run, run, shift=1)``
    puts position t beside t + 1 of the same document, the linear form of Future Lens (Pal et al.
    2023, arXiv 2311.04897). Sites are called ``<name>:<site>``, as in ``("gpt2:resid", 3)``.

    Parameters
    ----------
    first, second : Run
    shift : int
        Positions by which the second lies further on in its document.
    by : sequence of str
        Sample coordinates that tell samples apart, ``position`` among them where they are shifted.
    names : (str, str), optional
        Default: the models' labels; where they are the same, the corpora's; ``t`` and ``t+1`` for
        shifted positions.

    Returns
    -------
    AlignedRuns
        Accepted wherever rows are: by `gram`, by `fit`.

    Raises
    ------
    GramError
        No samples in common, samples that `by` does not tell apart, or that stand in another order.
    """
    names = names or _default_names(first, second, shift)
    if names[0] == names[1]:
        raise GramError(f"both runs would be called {names[0]!r}: give names=('a', 'b')")
    if shift and "position" not in by:
        raise GramError(f"shift={shift} moves positions, but by={tuple(by)} has no 'position'")
    keys = []
    for run, moved in ((first, shift), (second, 0)):
        values = [np.asarray(run.coordinate(name)) for name in by]
        values = [
            v + moved if name == "position" else v for name, v in zip(by, values, strict=True)
        ]
        keys.append(_records(values, by))
    for run, key in zip((first, second), keys, strict=True):
        if len(np.unique(key)) < len(key):
            raise GramError(
                f"{', '.join(by)} do not tell the samples of {run.model}/{run.corpus} apart: give "
                "by=('sequence', 'position') or other coordinates"
            )
    _, ours, theirs = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    if len(ours) == 0:
        raise GramError(
            f"{first.model}/{first.corpus} and {second.model}/{second.corpus} have no samples in "
            f"common by {', '.join(by)}" + (f" with shift {shift}" if shift else "")
        )
    order = np.argsort(ours)
    ours, theirs = ours[order], theirs[order]
    if np.any(np.diff(theirs) < 0):
        raise GramError(
            f"the samples of {first.model}/{first.corpus} and {second.model}/{second.corpus} stand "
            "in different orders: extract both from one corpus"
        )
    runs = first.isel(sample=ours), second.isel(sample=theirs)
    return AlignedRuns(runs, names)


class AlignedRuns:
    """Two runs of which row k is the same sample; a `RowSource`, made by `align`."""

    def __init__(self, runs: tuple[Any, Any], names: tuple[str, str]) -> None:
        self.runs = runs
        self.names = names
        self.n_samples: int = runs[0].n_samples
        self.sites: Mapping[str, Sequence[int]] = {
            f"{name}:{site}": layers
            for name, run in zip(names, runs, strict=True)
            for site, layers in run.sites.items()
        }

    def __repr__(self) -> str:
        pair = " beside ".join(f"{run.model}/{run.corpus}" for run in self.runs)
        return f"<AlignedRuns {pair}: {', '.join(self.sites)}, {self.n_samples:,} samples>"

    @property
    def model(self) -> str:
        """The models' labels, joined where they differ."""
        return "+".join(dict.fromkeys(run.model for run in self.runs))

    @property
    def corpus(self) -> str:
        """The corpora's labels, joined where they differ."""
        return "+".join(dict.fromkeys(run.corpus for run in self.runs))

    @property
    def dtype(self) -> str:
        """The wider of the two."""
        found: list[str] = [READ_AS[run.dtype] for run in self.runs]
        return max(found, key=lambda name: np.dtype(name).itemsize)

    def width(self, site: str) -> int:
        """Number of features of a site."""
        number, inner = self._place(site)
        return int(self.runs[number].width(inner))

    def coordinate(self, name: str) -> np.ndarray:
        """(n_samples,) values of a sample coordinate of the first run."""
        return np.asarray(self.runs[0].coordinate(name))

    def row_blocks(self, max_rows: int) -> list[AlignedBlock]:
        """Blocks that lie within one block of either run."""
        cuts = {block.out.start for run in self.runs for block in run.row_blocks(max_rows)}
        blocks = []
        for start, stop in pairwise([*sorted(cuts), self.n_samples]):
            pieces = [
                run.isel(sample=slice(start, stop)).row_blocks(stop - start)[0] for run in self.runs
            ]
            blocks.append(AlignedBlock((pieces[0], pieces[1]), slice(start, stop)))
        return blocks

    def read(
        self, site: str, layer: int, block: AlignedBlock, out: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, width) of one block."""
        number, inner = self._place(site)
        run, piece = self.runs[number], block.pieces[number]
        if out is None:
            return np.asarray(run.read(inner, layer, piece), self.dtype)
        if out.dtype == READ_AS[run.dtype]:
            run.read(inner, layer, piece, out=out)
        else:
            out[:] = run.read(inner, layer, piece)
        return out

    def key(self, sites: Mapping[str, Sequence[int]] | None = None) -> str:
        """Digest of everything that determines the numbers in view, or those of some layers."""
        total = hashlib.sha256()
        for number, (name, run) in enumerate(zip(self.names, self.runs, strict=True)):
            chosen = {
                self._place(site)[1]: layers
                for site, layers in (self.sites if sites is None else sites).items()
                if self._place(site)[0] == number
            }
            total.update(f"{name}\0{run.key(chosen)}\0".encode())
        return total.hexdigest()

    def info(self) -> dict[str, Any]:
        """Provenance of both; a fingerprint that holds for the pair."""
        found = [run.info() for run in self.runs]
        prints = [i.get("key", {}).get("model", {}).get("fingerprint") for i in found]
        joined = "+".join(dict.fromkeys(map(str, prints))) if all(prints) else None
        return {"key": {"model": {"fingerprint": joined}}, "aligned": found}

    def cache_group(self, name: str, *, create: bool = False) -> zarr.Group | None:
        """Beside the first run."""
        make = getattr(self.runs[0], "cache_group", None)
        group: zarr.Group | None = None if make is None else make(name, create=create)
        return group

    def _place(self, site: str) -> tuple[int, str]:
        """Which run a site is of, and what it is called there."""
        for number, name in enumerate(self.names):
            inner = site.removeprefix(f"{name}:")
            if inner != site and inner in self.runs[number].sites:
                return number, inner
        raise GramError(f"site {site!r} asked for, but there is {', '.join(self.sites)}")


def _default_names(first: Any, second: Any, shift: int) -> tuple[str, str]:
    if first.model != second.model:
        return first.model, second.model
    if shift:
        return "t", f"t{shift:+d}"
    return first.corpus, second.corpus


def _records(values: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """One comparable value for each sample."""
    plain = {"O": str, "i": np.int64, "u": np.int64}
    converted = [v.astype(plain.get(v.dtype.kind, v.dtype)) for v in values]
    kinds = [(name, v.dtype) for name, v in zip(names, converted, strict=True)]
    records = np.empty(len(converted[0]), kinds)
    for name, column in zip(names, converted, strict=True):
        records[name] = column
    return records
