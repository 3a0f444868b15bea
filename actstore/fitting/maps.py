"""Fitted linear maps: one between two layers, and the set of all that were fitted together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from os import PathLike
from typing import Any

import numpy as np
import xarray as xr

from actstore.errors import FitError, SiteError
from actstore.fitting.applying import apply_map
from actstore.grams.columns import Columns, Key
from actstore.grams.pairs import Pair, missing_pair
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear map between two layers, y ≈ x A + b; rows are samples.

    Attributes
    ----------
    source, target : layer, or (site, layer)
    matrix : (width source, width target) float64, float32 where saved so
    bias : (width target,) or None
        None where no intercept was fitted.
    rank : int
        Numerical rank of the source's rows in the fit, or the rank the map was brought down to.
    condition : float
        Condition number of the source's rows as solved: of the columns scaled alike where
        `method` is "cholesky"; of the singular values kept otherwise.
    method : str
        "cholesky"; "svd", the minimum-norm solution from the rows; "eigh", the minimum-norm
        solution from the Gram alone, which holds half the digits; "procrustes"; "composed".
    degrees_of_freedom : float
        Trace of the hat matrix of the fit, for each target coordinate: the rank without ridge,
        Σ λ/(λ + α) over eigenvalues of the source's moments with it, and one more for an
        intercept (Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning",
        §3.4.1). NaN where it is not known.
    ridge : float
        α of the fit.
    """

    source: Key
    target: Key
    matrix: np.ndarray
    bias: np.ndarray | None
    rank: int
    condition: float
    method: str
    degrees_of_freedom: float = nan
    ridge: float = 0.0
    _cast: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        height, width = self.matrix.shape
        return (
            f"<LinearMap {self.source} → {self.target}: {height} × {width}, rank {self.rank}, "
            f"condition {self.condition:.3g}, {self.method}>"
        )

    def __call__(self, x: Any) -> Any:
        """Apply to rows.

        Parameters
        ----------
        x : (..., width source) numpy or dask array, torch tensor or xarray DataArray
            Floating point; float16 and bfloat16 are multiplied in float32. A DataArray is taken
            along ``feature``, or its last dimension; dask arrays stay lazy.

        Returns
        -------
        (..., width target), of the kind and dtype and on the device of `x`

        Raises
        ------
        FitError
            Another width, or not a floating-point array.
        """
        name = f"{self.source} → {self.target}"
        return apply_map(x, name, self.matrix.shape, self._parts)

    def then(self, other: LinearMap) -> LinearMap:
        """This map and another after it, as one; also written ``first @ other``.

        Raises
        ------
        FitError
            The other does not start where this one ends.
        """
        if other.source != self.target or other.matrix.shape[0] != self.matrix.shape[1]:
            raise FitError(
                f"map {other.source} → {other.target} of {other.matrix.shape[0]} features cannot "
                f"follow {self.source} → {self.target}, which gives {self.matrix.shape[1]}"
            )
        bias = other.bias
        if self.bias is not None:
            bias = self.bias @ other.matrix + (0 if bias is None else bias)
        return LinearMap(
            self.source,
            other.target,
            self.matrix @ other.matrix,
            bias,
            min(self.rank, other.rank),
            nan,
            "composed",
        )

    def __matmul__(self, other: object) -> LinearMap:
        return self.then(other) if isinstance(other, LinearMap) else NotImplemented

    def to_torch(self, *, dtype: Any = None, device: Any = None) -> Any:
        """A `torch.nn.Linear` that computes the map, to train further or to put in a model.

        Parameters
        ----------
        dtype : torch.dtype, optional
            Default: float32.
        device : optional
            Default: torch's own.
        """
        import torch

        height, width = self.matrix.shape
        module = torch.nn.utils.skip_init(
            torch.nn.Linear,
            height,
            width,
            bias=self.bias is not None,
            dtype=dtype or torch.float32,
            device=device or torch.get_default_device(),
        )
        with torch.no_grad():
            module.weight.copy_(torch.tensor(self.matrix.T))
            if self.bias is not None:
                module.bias.copy_(torch.tensor(self.bias))
        return module

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: the numbers, not what was cast for one device or another."""
        return {**self.__dict__, "_cast": {}}

    def _parts(self, dtype: Any, device: Any) -> tuple[Any, Any]:
        """Matrix and bias for one kind of array, cast once."""
        if (dtype, device) not in self._cast:
            self._cast[dtype, device] = tuple(
                None if part is None else _as(part, dtype, device)
                for part in (self.matrix, self.bias)
            )
        matrix, bias = self._cast[dtype, device]
        return matrix, bias


def _as(part: np.ndarray, dtype: Any, device: Any) -> Any:
    if device == "numpy":
        return part.astype(dtype, copy=False)
    import torch

    return torch.as_tensor(part, dtype=dtype, device=device)


class MapSet(Mapping[Pair, LinearMap]):
    """Maps that were fitted together: a mapping (source, target) → `LinearMap`.

    Keys are layers, ``maps[3, 12]``, negative ones from the last; where several sites were fitted
    they are (site, layer), ``maps[("attn", 3), ("resid", 12)]``.

    Parameters
    ----------
    maps : mapping from (source place, target place) to LinearMap
    columns : Columns
    provenance : dict
        JSON-able: model, runs, rows, precision, intercept, ridge, versions.
    """

    def __init__(
        self,
        maps: Mapping[tuple[int, int], LinearMap],
        columns: Columns,
        provenance: Mapping[str, Any],
    ) -> None:
        self._maps = maps
        self.columns = columns
        self.provenance = dict(provenance)

    def __getitem__(self, pair: Pair) -> LinearMap:
        return self._maps[self._place(pair)]

    def __iter__(self) -> Iterator[Pair]:
        keys = self.columns.keys()
        return iter([(keys[i], keys[j]) for i, j in self._maps])

    def __len__(self) -> int:
        return len(self._maps)

    def __contains__(self, pair: object) -> bool:
        try:
            self._place(pair)
        except (KeyError, SiteError, FitError):
            return False
        return True

    def __repr__(self) -> str:
        ridge, intercept = self.provenance["ridge"], self.provenance["intercept"]
        alpha = f"of {len(ridge)} values" if isinstance(ridge, list) else f"{ridge:g}"
        runs = ", ".join(f"{run['model']}/{run['corpus']}" for run in self.provenance["runs"])
        return (
            f"<MapSet: {len(self)} maps of {self.columns!r} fitted on {runs} "
            f"({self.provenance['n']:,} rows), {'with' if intercept else 'no'} intercept, "
            f"ridge {alpha}>"
        )

    @property
    def places(self) -> list[tuple[int, int]]:
        """(source, target) places among `columns`, in order."""
        return list(self._maps)

    def at(self, place: tuple[int, int]) -> LinearMap:
        """The map at a (source, target) place."""
        return self._maps[place]

    def r2(
        self,
        on: Gram | RowSource,
        *,
        average: str | None = "uniform",
        progress: bool | None = None,
    ) -> xr.DataArray:
        """Coefficient of determination of every map on other rows, from their Gram alone.

        See `actstore.fitting.scores.r2`.
        """
        from actstore.fitting.scores import r2

        return r2(self, on, average=average, progress=progress)

    def r2_interval(
        self,
        on: Gram | RowSource,
        *,
        level: float = 0.95,
        average: str = "uniform",
        parts: int = 10,
        progress: bool | None = None,
    ) -> xr.Dataset:
        """r² with a jackknife interval over groups of documents, from their Grams alone.

        See `actstore.fitting.scores.r2_interval`.
        """
        from actstore.fitting.scores import r2_interval

        return r2_interval(self, on, level=level, average=average, parts=parts, progress=progress)

    def mse(
        self,
        on: Gram | RowSource,
        *,
        average: str | None = "uniform",
        progress: bool | None = None,
    ) -> xr.DataArray:
        """Mean squared error of every map on other rows, from their Gram alone.

        See `actstore.fitting.scores.mse`.
        """
        from actstore.fitting.scores import mse

        return mse(self, on, average=average, progress=progress)

    def save(self, path: str | PathLike[str], *, dtype: str = "float64") -> None:
        """Write one safetensors file that holds all maps and where they come from.

        Parameters
        ----------
        path : path
            Replaced only when the new file is whole.
        dtype : {"float64", "float32"}
            float32 takes half the space and keeps 7 digits.
        """
        from actstore.fitting.files import save_maps

        save_maps(self, path, dtype)

    def _place(self, pair: Any) -> tuple[int, int]:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise FitError(f"{pair!r} is not a pair (source, target); maps are keyed maps[i, j]")
        place = self.columns.index(pair[0]), self.columns.index(pair[1])
        if place not in self._maps:
            raise KeyError(missing_pair(self.columns, place, self._maps))
        return place
