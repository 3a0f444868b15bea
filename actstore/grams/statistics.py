"""The Gram: sufficient statistics of every pair of layers, as values that add and subtract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from actstore.errors import GramError
from actstore.grams.blocks import Chosen
from actstore.grams.columns import Columns, Key, describe_layers
from actstore.grams.source import RowSource

ROUGHEST = ("float32", "sketch", "float64")


class Gram:
    """n, Σz and ΣzᵀZ of Z = [z₀ | z₁ | … | z_L], kept about a shift.

    Everything quadratic in the activations follows from these: least squares between any two
    layers, r², and more, without touching the activations again
    ("Jump to Conclusions", arXiv 2303.09435, §2). ``a + b`` is the Gram of both sets of rows,
    ``a - b`` takes the rows of `b` out again.

    Attributes
    ----------
    columns : Columns
        Which site and layer each block is.
    n : float
        Number of rows, a whole number; Σw where they were weighted.
    shift : tuple of (width,) float64
        Subtracted from every row; any value gives the same statistics, a value near the mean
        keeps the digits.
    total : tuple of (width,) float64
        Σ(z − shift).
    provenance : dict
        JSON-able: model, runs that went in, precision, versions.
    run : RowSource or None
        The run it was computed from, while that is at hand.
    weights : (n_samples,) float64 or None
        How often each row of `run` counts; once, where there are none.
    parts : tuple of Gram
        Statistics of disjoint parts that add up to these rows, if they were kept; each names
        itself in ``provenance["part"]``.

    Parameters
    ----------
    blocks : mapping from (i, j), i ≤ j, to (width i, width j) float64
        Σ(zᵢ − shiftᵢ)(zⱼ − shiftⱼ)ᵀ; of a Gram larger than the memory allowed, each is read from
        disk when it is used.
    """

    def __init__(
        self,
        columns: Columns,
        n: float,
        shift: Sequence[np.ndarray],
        total: Sequence[np.ndarray],
        blocks: Mapping[tuple[int, int], np.ndarray],
        *,
        provenance: Mapping[str, Any],
        run: RowSource | None = None,
        parts: Sequence[Gram] = (),
        weights: np.ndarray | None = None,
    ) -> None:
        self.columns = columns
        self.n = n
        self.shift = tuple(shift)
        self.total = tuple(total)
        self.blocks = blocks
        self.provenance = dict(provenance)
        self.run = run
        self.parts = tuple(parts)
        self.weights = weights

    def __repr__(self) -> str:
        held = ", ".join(
            f"{site} layers {describe_layers(self.columns.layers(site))}"
            for site in self.columns.sites
        )
        names = " + ".join(
            f"{'−' if entry['sign'] < 0 else ''}{entry['model']}/{entry['corpus']}"
            for entry in self.provenance["runs"]
        )
        count = len(self.columns)
        if len(self.blocks) < count * (count + 1) // 2:
            held += f" ({len(self.blocks):,} of {count * (count + 1) // 2:,} pairs)"
        parts = f" in {len(self.parts)} parts" if self.parts else ""
        size = self.nbytes / 2**20
        weight = f" that weigh {self.n:,.6g}" if self.n != self.rows else ""
        return f"<Gram of {names}: {held}, {self.rows:,} rows{weight}{parts}, {size:,.0f} MiB>"

    @property
    def model(self) -> str:
        """Label of the model."""
        return str(self.provenance["model"])

    @property
    def layers(self) -> list[Key]:
        """Keys of the blocks: layers, or (site, layer) where there are several sites."""
        return self.columns.keys()

    @property
    def rows(self) -> int:
        """Number of rows that went in, less those taken out; of weighted ones, those above zero."""
        return sum(int(entry["sign"] * entry["n"]) for entry in self.provenance["runs"])

    @property
    def eps(self) -> float:
        """Rounding of the moments, beside their columns' spread."""
        return float(np.finfo("float32" if self.precision == "float32" else "float64").eps)

    @property
    def precision(self) -> str:
        """Of the products: "float64", "sketch" or "float32"."""
        return str(self.provenance["precision"])

    @property
    def nbytes(self) -> int:
        """Bytes of the moments, parts included."""
        width = [column.width for column in self.columns]
        own = 8 * sum(width[a] * width[b] for a, b in self.blocks)
        return own + sum(part.nbytes for part in self.parts)

    def width(self, key: Key) -> int:
        """Number of features of one block."""
        return int(self.columns[self.columns.index(key)].width)

    def mean(self, key: Key) -> np.ndarray:
        """(width,) float64 mean of one block's features."""
        k = self.columns.index(key)
        return np.asarray(self.shift[k] + self.total[k] / self.n)

    def cross(self, i: Key, j: Key, *, centred: bool = False) -> np.ndarray:
        """Cross moment of two blocks.

        Parameters
        ----------
        i, j : key
        centred : bool
            Whether about the means: Σ(zᵢ − z̄ᵢ)(zⱼ − z̄ⱼ)ᵀ; else Σ zᵢ zⱼᵀ.

        Returns
        -------
        (width i, width j) float64, a new array
        """
        a, b = self.columns.index(i), self.columns.index(j)
        moments = self._shifted(a, b)
        if centred:
            return moments - np.outer(self.total[a] / self.n, self.total[b])
        return moments + self._raw_part(a, b)

    def shifted(self, i: Key, j: Key) -> np.ndarray:
        """(width i, width j) float64: Σ(zᵢ − shiftᵢ)(zⱼ − shiftⱼ)ᵀ, not to be written to; less
        ``n offset(i) offset(j)ᵀ`` it is the centred moment."""
        return self._shifted(self.columns.index(i), self.columns.index(j))

    def offset(self, key: Key) -> np.ndarray:
        """(width,) float64: the mean less the shift."""
        return np.asarray(self.total[self.columns.index(key)] / self.n)

    def variance(self, key: Key) -> np.ndarray:
        """(width,) float64: Σ(z − z̄)² of one block's features, the diagonal of ``cross``."""
        k = self.columns.index(key)
        diagonal = np.diagonal(self.blocks[k, k])
        return np.asarray(np.maximum(diagonal - self.total[k] ** 2 / self.n, 0.0))

    def select(self, keys: Sequence[Key]) -> Gram:
        """The Gram of some of the blocks, in this order; no moments are copied where order is
        kept."""
        chosen = [self.columns.index(key) for key in keys]
        places = {
            (p, q): (a, b)
            for q, b in enumerate(chosen)
            for p, a in enumerate(chosen[: q + 1])
            if (min(a, b), max(a, b)) in self.blocks
        }
        blocks: Mapping[tuple[int, int], np.ndarray] = Chosen(self._shifted, places)
        if isinstance(self.blocks, dict):
            blocks = dict(blocks)
        return Gram(
            Columns([self.columns[k] for k in chosen], self.columns.owner),
            self.n,
            [self.shift[k] for k in chosen],
            [self.total[k] for k in chosen],
            blocks,
            provenance=self.provenance,
            run=self.run,
            parts=[part.select(keys) for part in self.parts],
            weights=self.weights,
        )

    def without(self, part: int) -> Gram:
        """All rows but those of one part: the training side of leave-one-fold-out.

        Raises
        ------
        GramError
            No parts were kept, or there is no part of that number.
        """
        if not self.parts:
            raise GramError("no parts were kept of this Gram: compute it with gram(run, parts=10)")
        if not 0 <= part < len(self.parts):
            raise GramError(f"part {part} asked for, but there are parts 0…{len(self.parts) - 1}")
        rest = self - self.parts[part]
        rest.parts = self.parts[:part] + self.parts[part + 1 :]
        return rest

    def __add__(self, other: object) -> Gram:
        if not isinstance(other, Gram):
            return NotImplemented
        self._check_alike(other)
        both = self._combine(other, 1)
        if self.parts and other.parts:
            both.parts = self.parts + other.parts
        return both

    def __sub__(self, other: object) -> Gram:
        if not isinstance(other, Gram):
            return NotImplemented
        self._check_alike(other)
        if other.n >= self.n:
            raise GramError(
                f"cannot take {other.rows:,} rows out of a Gram of {self.rows:,}: none would be "
                "left"
            )
        return self._combine(other, -1)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to one file, a zipped Zarr group with checksums; replaced only when whole."""
        from actstore.grams.files import save_gram

        save_gram(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Gram:
        """Read what `save` wrote.

        Raises
        ------
        GramError
            Not there, or not a Gram.
        CorruptionError
            Bytes changed on disk.
        """
        from actstore.grams.files import load_gram

        return load_gram(path)

    def _shifted(self, a: int, b: int) -> np.ndarray:
        if (min(a, b), max(a, b)) not in self.blocks:
            keys = self.layers
            raise GramError(
                f"the moments between {keys[a]} and {keys[b]} are not in {self!r}: compute it with "
                "gram(run), or with these among its pairs="
            )
        return self.blocks[a, b] if a <= b else self.blocks[b, a].T

    def _raw_part(self, a: int, b: int) -> np.ndarray:
        """What turns moments about the shift into raw ones."""
        mean = self.shift[b] + self.total[b] / self.n
        part = np.outer(self.n * self.shift[a], mean)
        return part + np.outer(self.total[a], self.shift[b])

    def _check_alike(self, other: Gram) -> None:
        if self.columns != other.columns:
            raise GramError(
                f"Grams of different columns cannot be combined: {self.columns!r} and "
                f"{other.columns!r}; bring them together with .select(...)"
            )
        if set(self.blocks) != set(other.blocks):
            raise GramError(
                f"Grams of different pairs of layers cannot be combined: {self!r} and {other!r}; "
                "compute both with the same pairs="
            )
        ours, theirs = (g.provenance.get("model_fingerprint") for g in (self, other))
        if self.model != other.model or (ours and theirs and ours != theirs):
            raise GramError(
                f"Grams of different models cannot be combined: {self.model} ({ours}) and "
                f"{other.model} ({theirs})"
            )

    def _combine(self, other: Gram, sign: int) -> Gram:
        """Add or take out another's rows, after moving its moments to this shift exactly:
        Σ(z − s)(z − s)ᵀ = Σ(z − t)(z − t)ᵀ + δ·T'ᵀ + T·δ'ᵀ + n·δ·δ'ᵀ, δ = t − s, T = Σ(z − t)."""
        delta = [t - s for s, t in zip(self.shift, other.shift, strict=True)]

        def combined(a: int, b: int) -> np.ndarray:
            block = self.blocks[a, b]
            if not (delta[a].any() or delta[b].any()):
                return block + sign * other.blocks[a, b]
            moved = other.blocks[a, b] + np.outer(delta[a], other.total[b] + other.n * delta[b])
            moved += np.outer(other.total[a], delta[b])
            return block + moved if sign > 0 else block - moved

        blocks: Mapping[tuple[int, int], np.ndarray] = Chosen(
            combined, {pair: pair for pair in self.blocks}
        )
        if isinstance(self.blocks, dict) and isinstance(other.blocks, dict):
            blocks = dict(blocks)
        total = [
            mine + sign * (its + other.n * d)
            for mine, its, d in zip(self.total, other.total, delta, strict=True)
        ]
        runs = [*self.provenance["runs"]]
        runs += [{**entry, "sign": entry["sign"] * sign} for entry in other.provenance["runs"]]
        precision = min(self.precision, other.precision, key=ROUGHEST.index)
        return Gram(
            self.columns,
            self.n + sign * other.n,
            self.shift,
            total,
            blocks,
            provenance={**self.provenance, "runs": runs, "precision": precision},
        )
