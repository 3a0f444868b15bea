"""What the kernel computes with, in torch: the same steps on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actstore.errors import GramError, MissingDependencyError
from actstore.grams.arithmetic import HEAVY, Recipe, most_rows


def check_device(device: str) -> None:
    """Whether torch can compute there.

    Raises
    ------
    GramError
        No such device, or one without float64.
    MissingDependencyError
        torch is not installed.
    """
    torch = _torch()
    try:
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        reason = str(error).strip().splitlines()[0]
        raise GramError(
            f"device={device!r} cannot add up float64 numbers here ({reason}): choose one of "
            f"{', '.join(there)}, or None for numpy"
        ) from None


class TorchArithmetic:
    """Torch's: rows are shifted, turned, multiplied and added up on the device, with the dtypes
    of `NumpyArithmetic`; what comes back is numpy."""

    def __init__(
        self,
        recipe: Recipe,
        rows: int,
        width: int,
        widest: int,
        totals: Mapping[Any, np.ndarray],
        fresh: bool,
    ) -> None:
        assert recipe.device is not None
        self._recipe = recipe
        check_device(recipe.device)
        torch = _torch()
        if recipe.dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
            raise GramError(
                "torch multiplies float32 with fewer digits here "
                f"({torch.get_float32_matmul_precision()!r}): call "
                "torch.set_float32_matmul_precision('highest'), or take precision='float64'"
            )
        self._torch = torch
        self._dtype = getattr(torch, recipe.dtype)
        self._device = torch.device(recipe.device)
        self._shift = {k: self._put(shift) for k, shift in recipe.shift.items()}
        self._bases = None
        if recipe.bases is not None:
            self._bases = {k: self._put(basis) for k, basis in recipe.bases.items()}
        self._buffer = torch.empty((rows, width), dtype=self._dtype, device=self._device)
        self._heavy = torch.zeros(rows, dtype=torch.bool, device=self._device)
        self._apart: tuple[np.ndarray, Any] | None = None
        self._totals = {
            key: torch.zeros(total.shape, dtype=torch.float64, device=self._device)
            if fresh
            else self._put(total)
            for key, total in totals.items()
        }

    def load(
        self,
        k: int,
        place: slice,
        rows: np.ndarray,
        weights: np.ndarray | None,
        shares: Sequence[slice],
    ) -> list[np.ndarray]:
        """Of `Arithmetic`."""
        values = self._put(rows).double() - self._shift[k]
        if self._bases is None:
            values = values.to(self._dtype).double()
        if weights is None:
            sums = [values[share].sum(dim=0) for share in shares]
        else:
            counts = self._put(weights)
            sums = [counts[share] @ values[share] for share in shares]
            values *= counts.sqrt()[:, None]
        if self._bases is not None:
            values = values @ self._bases[k]
        self._buffer[: len(rows), place] = values
        if self._bases is not None:
            if self._apart is not None:
                self._apart, self._heavy[:] = None, False
            squares = values * values
            self._heavy[: len(rows)] |= squares.amax(dim=1) > HEAVY * squares.mean()
        return [part.cpu().numpy() for part in sums]

    def multiply(self, key: Any, left: slice, right: slice, share: slice) -> None:
        """Of `Arithmetic`."""
        heavy, total = self._set_apart(), self._totals[key]
        step = most_rows(self._recipe.dtype, total.numel(), len(self._buffer))
        for start in range(share.start, share.stop, step):
            rows = slice(start, min(start + step, share.stop))
            total += self._buffer[rows, left].T @ self._buffer[rows, right]
        if self._bases is not None:
            numbers, values = heavy
            some = slice(*np.searchsorted(numbers, (share.start, share.stop)))
            total += values[some, left].T @ values[some, right]

    def _set_apart(self) -> tuple[np.ndarray, Any]:
        """As `NumpyArithmetic` does."""
        if self._apart is None:
            numbers = self._heavy.nonzero()[:, 0]
            self._apart = numbers.cpu().numpy(), self._buffer[numbers].double()
            self._buffer[numbers] = 0
        return self._apart

    def totals(self) -> dict[Any, np.ndarray]:
        """Of `Arithmetic`."""
        return {key: total.cpu().numpy() for key, total in self._totals.items()}

    def _put(self, values: np.ndarray) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "device=... computes with torch, which is not installed: pip install torch, or leave "
            "device out"
        ) from None
    return torch
