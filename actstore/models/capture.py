"""Copy the wanted states of the wanted positions out of one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from actstore.models.batch import padded
from actstore.models.running import StopForward, call_with_ids, hooked
from actstore.models.sites import InnerSite, SiteSpec
from actstore.models.structure import Stack
from actstore.models.tail import Tail
from actstore.models.tensors import hidden_input, hidden_output, rows_of


@dataclass(slots=True)
class _Sink:
    """Where the rows of one (site, layer) go, and their scale.

    ``into`` is (rows of the batch, width), or has its rows at ``at``.
    """

    into: torch.Tensor
    at: np.ndarray | None = None
    scale: float = 1.0

    def take(self, states: torch.Tensor, rows: torch.Tensor) -> None:
        there = rows_of(states)
        same = (there.device, there.dtype) == (self.into.device, self.into.dtype)
        if self.at is None and self.scale == 1.0 and same:
            torch.index_select(there, 0, rows, out=self.into)
            return
        picked = there.index_select(0, rows)
        if self.scale != 1.0:
            picked = picked * self.scale
        if self.at is None:
            self.into.copy_(picked, non_blocking=True)
        else:  # twice as quick as index_copy_ on a CPU
            self.into.numpy()[self.at] = picked.to(self.into.device, self.into.dtype).numpy()


@dataclass(slots=True)
class _Tap:
    """The sinks of one module, by the number of the block that is running."""

    inputs: dict[int, list[_Sink]] = field(default_factory=dict)
    outputs: dict[int, list[_Sink]] = field(default_factory=dict)


def capture_rows(
    stack: Stack,
    tail: Tail,
    inner: Mapping[str, InnerSite],
    specs: Mapping[str, SiteSpec],
    embedding: Any,
    batch_ids: list[np.ndarray],
    rows: np.ndarray,
    wanted: Mapping[str, Sequence[int]],
    *,
    pad_id: int,
    dtype: torch.dtype,
    out: Mapping[str, torch.Tensor] | None = None,
    at: np.ndarray | None = None,
) -> dict[str, torch.Tensor]:
    """Run one right-padded batch and return, per site, (numbers wanted, rows, width).

    ``rows`` are flat numbers into the padded batch, ``sequence * longest + position``. The
    forward pass stops behind the last block that anybody wants. `actstore.models.running.quiet`
    stands around this call. With ``out``, row r is written to ``out[site][:, at[r]]``.
    """
    batch, mask = padded(batch_ids, pad_id)
    device: Any = embedding.weight.device
    pin = device.type == "cuda"
    kept = torch.float32 if dtype == torch.bfloat16 else dtype
    given, where = out, at
    if given is None or pin:  # pinned memory is what a GPU can copy to while it computes
        where = None
        out = {
            site: torch.empty(
                (len(numbers), len(rows), specs[site].width), dtype=kept, pin_memory=pin
            )
            for site, numbers in wanted.items()
        }
    assert out is not None
    last = torch.empty((len(rows), specs["resid"].width), dtype=dtype, pin_memory=pin)
    taps, until = _plan(stack, inner, embedding, wanted, out, where, last)
    if stack.n_start:
        rows = rows + stack.n_start * (1 + rows // batch.shape[1])
    index = torch.as_tensor(rows, device=device)
    handles = _hooks(stack, taps, until, index)
    with hooked(*handles), suppress(StopForward):
        call_with_ids(stack.runner or stack.base, batch, mask, device, start=stack.start)
    if pin:
        torch.cuda.synchronize()
    if "final_norm" in out:
        near = next((m for m in tail.modules if any(True for _ in m.parameters())), embedding)
        home = next(near.parameters()).device
        normed = tail(last.to(home)).to("cpu", kept)
        out["final_norm"].numpy()[:, _rows(where)] = normed.numpy()
    if given is None or given is out:
        return dict(out)
    for site, states in out.items():
        given[site].numpy()[:, _rows(at)] = states.numpy()
    return dict(given)


def _rows(at: np.ndarray | None) -> Any:
    return slice(None) if at is None else at


def _plan(
    stack: Stack,
    inner: Mapping[str, InnerSite],
    embedding: Any,
    wanted: Mapping[str, Sequence[int]],
    out: Mapping[str, torch.Tensor],
    at: np.ndarray | None,
    last: torch.Tensor,
) -> tuple[dict[nn.Module, _Tap], int]:
    """Which module's input or output feeds which slice; and how many blocks must run."""
    taps: dict[nn.Module, _Tap] = {}
    until = 0

    def tap(module: nn.Module) -> _Tap:
        return taps.setdefault(module, _Tap())

    for site, numbers in wanted.items():
        for k, number in enumerate(numbers):
            if site == "embed":
                tap(embedding).outputs.setdefault(-1, []).append(_Sink(out[site][k], at))
            elif site == "final_norm":
                until = len(stack.blocks)
                tap(stack.blocks[-1]).outputs.setdefault(until - 1, []).append(_Sink(last))
            elif site == "resid":
                until = max(until, number)
                if number == 0:
                    tap(stack.blocks[0]).inputs.setdefault(0, []).append(_Sink(out[site][k], at))
                else:
                    block = stack.blocks[number - 1]
                    sinks = tap(block).outputs.setdefault(number - 1, [])
                    sinks.append(_Sink(out[site][k], at))
            else:
                until = max(until, number + 1)
                where = inner[site]
                there = tap(stack.blocks[number].get_submodule(where.path))
                side = there.inputs if where.at == "input" else there.outputs
                side.setdefault(number, []).append(_Sink(out[site][k], at, where.scale))
    return taps, until


def _hooks(
    stack: Stack, taps: Mapping[nn.Module, _Tap], until: int, rows: torch.Tensor
) -> list[Any]:
    """Register the hooks of a plan; a counter tells calls of a shared block apart."""
    running = [-1]
    moved: dict[Any, torch.Tensor] = {rows.device: rows}

    def give(sinks: list[_Sink], states: torch.Tensor | None) -> None:
        if sinks and states is not None:
            there = moved.setdefault(states.device, rows)
            if there.device != states.device:
                there = moved[states.device] = rows.to(states.device)
            for sink in sinks:
                sink.take(states, there)

    def before_inner(module: nn.Module, args: Any, kwargs: Any) -> None:
        give(taps[module].inputs.get(running[0], []), hidden_input(args, kwargs))

    def after_inner(module: nn.Module, args: Any, output: Any) -> None:
        give(taps[module].outputs.get(running[0], []), hidden_output(output))

    def before_block(module: nn.Module, args: Any, kwargs: Any) -> None:
        running[0] += 1
        if module in taps:
            give(taps[module].inputs.get(running[0], []), hidden_input(args, kwargs))
        if until == 0:
            raise StopForward

    def after_block(module: nn.Module, args: Any, output: Any) -> None:
        if module in taps:
            give(taps[module].outputs.get(running[0], []), hidden_output(output))
        if running[0] + 1 == until:
            raise StopForward

    handles: list[Any] = []
    blocks = set(stack.blocks)
    for block in blocks:
        handles.append(block.register_forward_pre_hook(before_block, with_kwargs=True))
        handles.append(block.register_forward_hook(after_block))
    for module in taps:
        if module not in blocks:
            handles.append(module.register_forward_pre_hook(before_inner, with_kwargs=True))
            handles.append(module.register_forward_hook(after_inner))
    return handles
