"""Small helpers on the tensors that pass between a model's modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: Largest relative difference that two ways of computing the same row may show.
_AGREEMENT = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 2e-1,
}


def agreement(dtype: torch.dtype) -> float:
    """Tolerance, as a share of a row's norm, for results that rounding alone may separate."""
    return _AGREEMENT.get(dtype, 2e-1)


def hidden_output(output: Any) -> torch.Tensor | None:
    """The hidden states in what a module returned: a tensor, or the first of a tuple."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, Sequence) and len(output) > 0:
        return hidden_output(output[0])
    return None


def hidden_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The hidden states among a module's arguments: its first floating tensor of rank ≥ 2."""
    named = [kwargs[name] for name in ("hidden_states", "hidden_state", "x") if name in kwargs]
    for value in (*args, *named, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim >= 2:
            return value
    return None


def rows_of(tensor: torch.Tensor, width: int | None = None) -> torch.Tensor:
    """View states of any leading shape as (rows, width)."""
    return tensor.reshape(-1, tensor.shape[-1] if width is None else width)


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative distance between rows, ``max_r ‖a_r − b_r‖ / ‖b_r‖`` (inf if NaN)."""
    return _relative(a, b, torch.max)


def typical_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Median over rows of the relative distance, for comparisons that one row may upset."""
    return _relative(a, b, torch.median)


def _relative(a: torch.Tensor, b: torch.Tensor, over_rows: Any) -> float:
    if a.numel() != b.numel() or a.numel() == 0:
        return float("inf")
    x = rows_of(a).double().cpu()
    y = b.reshape(x.shape).double().cpu()
    ratio = (x - y).norm(dim=1) / y.norm(dim=1).clamp_min(1e-30)
    value = float(over_rows(ratio))
    return value if value == value else float("inf")
