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
from actstore.fitting.pairs import Pair
from actstore.grams.columns import Columns, Key
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
        Numerical rank of the source's rows in the fit.
    condition : float
        Condition number of the source's rows as solved: of the columns scaled alike where
        `method` is "cholesky"; of the singular values kept otherwise.
    method : str
        "cholesky"; "svd", the minimum-norm solution from the rows; "eigh", the minimum-norm
        solution from the Gram alone, which holds half the digits.
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
        x : (..., width source) numpy array or torch tensor, floating point
            float16 and bfloat16 are multiplied in float32.

        Returns
        -------
        (..., width target), of the dtype and on the device of `x`

        Raises
        ------
        FitError
            Another width, or not a floating-point array.
        """
        if type(x).__module__.partition(".")[0] == "torch":
            return self._apply_torch(x)
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            kind = f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__
            raise FitError(
                f"a map applies to a floating-point numpy array or torch tensor, not to {kind}"
            )
        self._check(x)
        dtype = np.dtype(np.float32) if x.dtype.itemsize < 4 else x.dtype
        if dtype not in self._cast:
            self._cast[dtype] = [
                None if part is None else part.astype(dtype, copy=False)
                for part in (self.matrix, self.bias)
            ]
        matrix, bias = self._cast[dtype]
        y = x.astype(dtype, copy=False) @ matrix
        return (y if bias is None else y + bias).astype(x.dtype, copy=False)

    def _apply_torch(self, x: Any) -> Any:
        import torch

        if not x.is_floating_point():
            raise FitError(f"a map applies to a floating-point tensor, not to one of {x.dtype}")
        self._check(x)
        dtype = torch.float32 if x.element_size() < 4 else x.dtype
        if (dtype, x.device) not in self._cast:
            self._cast[dtype, x.device] = [
                None if part is None else torch.as_tensor(part, dtype=dtype, device=x.device)
                for part in (self.matrix, self.bias)
            ]
        matrix, bias = self._cast[dtype, x.device]
        y = x.to(dtype) @ matrix
        return (y if bias is None else y + bias).to(x.dtype)

    def _check(self, x: Any) -> None:
        width = self.matrix.shape[0]
        if x.ndim == 0 or x.shape[-1] != width:
            raise FitError(
                f"map {self.source} → {self.target} takes {width} features, but the array has "
                f"shape {tuple(x.shape)}"
            )


class MapSet(Mapping[Pair, LinearMap]):
    """Maps that were fitted together: a mapping (source, target) → `LinearMap`.

    Keys are layers, ``maps[3, 12]``; where several sites were fitted they are (site, layer),
    ``maps[("attn", 3), ("resid", 12)]``.

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
        parts: int = 20,
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
            raise KeyError(f"no map {pair[0]} → {pair[1]}: it is not among the pairs fitted")
        return place
