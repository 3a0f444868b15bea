"""The number formats a store keeps, and exact ways in and out of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actstore.errors import DtypeOverflowError, NonFiniteError, StoreError
from actstore.wording import count


@dataclass(frozen=True, slots=True)
class StoredDtype:
    """How one number format lies on disk and what reading it gives.

    Attributes
    ----------
    name : str
        ``float32``, ``float16``, ``bfloat16`` or ``int8``.
    disk : numpy.dtype
        Little-endian type of the chunk's items; ``uint16`` bits for bfloat16, which Zarr
        does not know.
    memory : numpy.dtype
        Type that reading gives: float32 for bfloat16 and int8.
    fill : float or int
        NaN as an item of `disk`, so that what was never written cannot pass for a number.
    limit : float
        Smallest magnitude that would round to infinity.
    extra : int
        Items of `disk` behind the features of a row: int8 keeps the row's scale there, the four
        bytes of a little-endian float32.
    error : str
        How far a stored value is from the one that was given.
    """

    name: str
    disk: np.dtype
    memory: np.dtype
    fill: float | int
    limit: float
    extra: int = 0
    error: str = "none beyond rounding to the nearest number of the format"


DTYPES = {
    "float32": StoredDtype(
        "float32", np.dtype("<f4"), np.dtype("float32"), float("nan"), float(2.0**128 - 2.0**103)
    ),
    "float16": StoredDtype("float16", np.dtype("<f2"), np.dtype("float16"), float("nan"), 65520.0),
    "bfloat16": StoredDtype(
        "bfloat16", np.dtype("<u2"), np.dtype("float32"), 0x7FC0, float(2.0**128 - 2.0**119)
    ),
    # Where nothing was written the scale's bytes are those of a NaN.
    "int8": StoredDtype(
        "int8",
        np.dtype("<i1"),
        np.dtype("float32"),
        -1,
        float(2.0**128 - 2.0**103),
        extra=4,
        error="at most 1/254 of the largest magnitude in the row",
    ),
}


def stored_dtype(name: str) -> StoredDtype:
    """The format called `name`; StoreError for one that a store cannot keep."""
    try:
        return DTYPES[name]
    except KeyError:
        raise StoreError(
            f"dtype {name!r} cannot be stored: choose one of {', '.join(DTYPES)}"
        ) from None


def check_values(values: np.ndarray, dtype: StoredDtype, where: str, first_row: int = 0) -> None:
    """Refuse what is not a number or what `dtype` cannot hold.

    Parameters
    ----------
    values : (rows, width) float16, float32 or float64
    dtype : StoredDtype
    where : str
        Run, site and layer, for the error's text.
    first_row : int
        Sample number of the first row.

    Raises
    ------
    NonFiniteError
        NaN or infinity; the first few samples are named.
    DtypeOverflowError
        A finite value at or above `dtype.limit`; the value and its sample are named.
    """
    if values.size == 0:
        return
    if values.dtype == np.float16:
        # Halves compare slowly; their bits without the sign are ordered like magnitudes.
        top = float((values.view(np.uint16) & np.uint16(0x7FFF)).max().view(np.float16))
    else:
        top = max(float(values.max()), -float(values.min()))
    if np.isfinite(top) and top < dtype.limit:
        return
    if not np.isfinite(top):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        shown = ", ".join(str(first_row + row) for row in bad[:5])
        more = ", …" if bad.size > 5 else ""
        raise NonFiniteError(
            f"{where}: NaN or infinity in {bad.size} of {count(values.shape[0], 'row')} (samples "
            f"{shown}"
            f"{more}); nothing of this shard was committed. Run the model in float32, or with "
            "attn_implementation='eager'"
        )
    row, column = np.unravel_index(int(np.abs(values).argmax()), values.shape)
    raise DtypeOverflowError(
        f"{where}: {float(values[row, column]):g} (sample {first_row + int(row)}, feature "
        f"{int(column)}) does not fit {dtype.name}, which ends at {_largest(dtype):g}; "
        f"store as {'float32' if dtype.name == 'bfloat16' else 'bfloat16 or float32'} instead"
    )


def to_disk(values: np.ndarray, dtype: StoredDtype, out: np.ndarray) -> None:
    """Round `values`, (rows, width), to nearest even into `out`, (rows, width + extra) `disk`."""
    if dtype.name == "int8":
        _quantise(values, out)
    elif dtype.name == "bfloat16":
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        np.copyto(out, (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16, casting="unsafe")
    else:
        np.copyto(out, values, casting="same_kind")


def from_disk(items: np.ndarray, dtype: StoredDtype, out: np.ndarray) -> None:
    """What `items`, (rows, width + extra) of `dtype.disk`, stand for, into `out` (rows, width)."""
    if dtype.name == "int8":
        width = out.shape[1]
        scale = np.ascontiguousarray(items[:, width:]).view("<f4")
        np.multiply(items[:, :width], scale, out=out, dtype=np.float32)
    elif dtype.name == "bfloat16":
        bits = out.view("<u4")
        np.copyto(bits, items)
        np.left_shift(bits, 16, out=bits)
    else:
        np.copyto(out, items)


def _quantise(values: np.ndarray, out: np.ndarray) -> None:
    """Each row in whole multiples, −127…127, of its scale max |row| / 127."""
    rows, width = values.shape
    values = np.asarray(values, np.float32)
    scale = (np.abs(values).max(axis=1, initial=0, keepdims=True) / np.float32(127)).astype("<f4")
    divisor = np.where(scale > 0, scale, np.float32(1))
    out[:, :width] = np.clip(np.rint(values / divisor), -127, 127)
    out[:, width:] = scale.view(np.int8).reshape(rows, 4)


def _largest(dtype: StoredDtype) -> float:
    largest = {"float16": 65504.0, "bfloat16": float(2.0**128 - 2.0**120)}
    return largest.get(dtype.name, float(np.finfo(np.float32).max))
