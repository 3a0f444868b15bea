"""How a map is applied: numpy, torch, dask and xarray, each kept as it came."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from actstore.errors import FitError

Parts = Callable[[Any, str], tuple[Any, Any]]
KINDS = "a floating-point numpy or dask array, torch tensor or xarray DataArray"


def apply_map(x: Any, name: str, shape: tuple[int, int], parts: Parts) -> Any:
    """x A + b.

    Parameters
    ----------
    x : (..., width source)
    name : str
        Of the map, for messages.
    shape : (width source, width target)
    parts : callable
        (dtype, device) → matrix and bias as arrays or tensors of that kind.

    Raises
    ------
    FitError
        Another width, or not a floating-point array.
    """
    if isinstance(x, xr.DataArray):
        return _xarray(x, name, shape, parts)
    if isinstance(x, da.Array):
        return _dask(x, name, shape, parts)
    if type(x).__module__.partition(".")[0] == "torch":
        return _torch(x, name, shape, parts)
    _check_kind(x, isinstance(x, np.ndarray))
    _check_width(x, name, shape)
    return _numpy(x, parts)


def _numpy(x: np.ndarray, parts: Parts) -> np.ndarray:
    dtype = np.dtype(np.float32) if x.dtype.itemsize < 4 else x.dtype
    matrix, bias = parts(dtype, "numpy")
    y = x.astype(dtype, copy=False) @ matrix
    return np.asarray((y if bias is None else y + bias).astype(x.dtype, copy=False))


def _dask(x: da.Array, name: str, shape: tuple[int, int], parts: Parts) -> da.Array:
    """Lazy, block by block; a block holds all features of its rows."""
    _check_kind(x, True)
    _check_width(x, name, shape)
    x = x.rechunk({x.ndim - 1: shape[0]})
    chunks = (*x.chunks[:-1], (shape[1],))
    meta = np.empty((0,) * x.ndim, x.dtype)
    found: da.Array = da.map_blocks(
        partial(_numpy, parts=parts), x, dtype=x.dtype, chunks=chunks, meta=meta
    )
    return found


def _torch(x: Any, name: str, shape: tuple[int, int], parts: Parts) -> Any:
    import torch

    if not x.is_floating_point():
        raise FitError(f"a map applies to a floating-point tensor, not to one of {x.dtype}")
    _check_width(x, name, shape)
    dtype = torch.float32 if x.element_size() < 4 else x.dtype
    matrix, bias = parts(dtype, x.device)
    y = x.to(dtype) @ matrix
    return (y if bias is None else y + bias).to(x.dtype)


def _xarray(x: xr.DataArray, name: str, shape: tuple[int, int], parts: Parts) -> xr.DataArray:
    """Along ``feature``, or the last dimension where there is none of that name. What says which
    layer or feature the numbers are is left out: it is true no longer."""
    dim = "feature" if "feature" in x.dims else x.dims[-1] if x.dims else None
    if dim is None:
        _check_width(x, name, shape)
    y = xr.apply_ufunc(
        lambda values: apply_map(values, name, shape, parts),
        x,
        input_core_dims=[[dim]],
        output_core_dims=[[dim]],
        exclude_dims={dim},
        dask="allowed",
    )
    stale = [c for c in ("layer", "block") if c in y.coords and c not in y.dims]
    return y.drop_vars(stale).transpose(*x.dims)


def _check_kind(x: Any, known: bool) -> None:
    if not known or x.dtype.kind != "f":
        kind = f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__
        raise FitError(f"a map applies to {KINDS}, not to {kind}")


def _check_width(x: Any, name: str, shape: tuple[int, int]) -> None:
    if x.ndim == 0 or x.shape[-1] != shape[0]:
        raise FitError(
            f"map {name} takes {shape[0]} features, but the array has shape {tuple(x.shape)}"
        )
