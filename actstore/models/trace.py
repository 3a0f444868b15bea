"""One forward pass with every module's input and output written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from actstore.errors import UnsupportedModelError
from actstore.models.running import hooked
from actstore.models.structure import Stack
from actstore.models.tensors import hidden_input, hidden_output
from actstore.wording import count


@dataclass(slots=True)
class Call:
    """One call of a module: copies of the hidden states that went in and came out."""

    path: str
    module: nn.Module
    given: torch.Tensor | None
    returned: torch.Tensor | None = None


@dataclass(slots=True)
class Trace:
    """What a forward pass did.

    Attributes
    ----------
    entering, leaving : list of tensors (batch, time, width)
        Per block, the stream before and after it.
    inside : list of lists of Call
        Per block, the calls of the modules inside it, in the order they began; only of those
        that are called once.
    after : list of Call
        The outermost calls after the last block, inside the base module.
    last_hidden : tensor
        What the base module returned.
    result : Any
        What ``run`` returned.
    """

    entering: list[torch.Tensor] = field(default_factory=list)
    leaving: list[torch.Tensor] = field(default_factory=list)
    inside: list[list[Call]] = field(default_factory=list)
    after: list[Call] = field(default_factory=list)
    last_hidden: torch.Tensor | None = None
    result: Any = None


def trace_forward(stack: Stack, run: Callable[[], Any], shape: tuple[int, int]) -> Trace:
    """Call ``run`` and write down what the stack's modules saw of a batch of this shape.

    Raises
    ------
    UnsupportedModelError
        The blocks did not each run once, in order, on one hidden state.
    """
    trace = Trace()
    recorder = _Recorder(stack, trace, shape)
    with hooked(*recorder.handles):
        trace.result = run()
    if len(trace.leaving) != len(stack.blocks):
        raise UnsupportedModelError(
            f"check 'blocks' failed: {count(len(trace.leaving), 'block')} ran in one forward pass, "
            f"expected the {len(stack.blocks)} of {stack.pattern}"
        )
    trace.inside = [_once(calls) for calls in trace.inside]
    return trace


def _once(calls: list[Call]) -> list[Call]:
    """Without modules that run several times in a block (one dropout for two branches)."""
    count = Counter(call.path for call in calls)
    return [call for call in calls if count[call.path] == 1]


class _Recorder:
    """The hooks of a trace and the little state they share."""

    def __init__(self, stack: Stack, trace: Trace, shape: tuple[int, int]) -> None:
        self.stack, self.trace, self.shape = stack, trace, shape
        self.open: list[Call] = []
        self.finished = False
        self.handles: list[Any] = []
        blocks = dict.fromkeys(stack.blocks)
        inner: dict[nn.Module, str] = {}
        for block in blocks:
            self._hook(block, self._enter_block, self._leave_block)
            for path, module in block.named_modules():
                if module is not block and module not in inner:
                    inner[module] = path
                    self._hook(module, self._enter_inner(path), self._leave_inner)
        for path, module in stack.base.named_modules():
            if module not in inner and module not in blocks and module is not stack.base:
                self._hook(module, self._enter_after(path), self._leave_after)
        self.handles.append(stack.base.register_forward_hook(self._leave_base))

    def _hook(self, module: nn.Module, enter: Any, leave: Any) -> None:
        self.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self.handles.append(module.register_forward_hook(leave))

    def _enter_block(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        number = len(self.trace.entering)
        given = hidden_input(args, kwargs)
        if number >= len(self.stack.blocks) or module is not self.stack.blocks[number]:
            raise UnsupportedModelError(
                f"check 'blocks' failed: the blocks of {self.stack.pattern} do not run once each "
                f"in the order of the list (call {number})"
            )
        given = self._checked(given, f"block {number} of {self.stack.pattern} got")
        self.trace.entering.append(given.clone())
        self.trace.inside.append([])

    def _leave_block(self, module: nn.Module, args: Any, output: Any) -> None:
        returned = hidden_output(output)
        number = len(self.trace.leaving)
        returned = self._checked(returned, f"block {number} of {self.stack.pattern} returned")
        self.trace.leaving.append(returned.clone())
        self.finished = len(self.trace.leaving) == len(self.stack.blocks)

    def _checked(self, states: torch.Tensor | None, who: str) -> torch.Tensor:
        if states is None or states.ndim != 3 or states.shape[:2] != self.shape:
            what = "no hidden states" if states is None else f"shape {tuple(states.shape)}"
            raise UnsupportedModelError(
                f"check 'stream' failed: {who} {what}, expected (batch, time, width) with "
                f"{self.shape} first; attn_implementation='sdpa' or 'eager' may help"
            )
        return states

    def _enter_inner(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            call = Call(path, module, _copy(hidden_input(args, kwargs)))
            self.trace.inside[-1].append(call)
            self.open.append(call)

        return enter

    def _leave_inner(self, module: nn.Module, args: Any, output: Any) -> None:
        self.open.pop().returned = _copy(hidden_output(output))

    def _enter_after(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self.finished:
                self.open.append(Call(path, module, _copy(hidden_input(args, kwargs))))

        return enter

    def _leave_after(self, module: nn.Module, args: Any, output: Any) -> None:
        # the module that contains the stack began before the last block ended: not recorded
        if self.open and self.open[-1].module is module:
            call = self.open.pop()
            call.returned = _copy(hidden_output(output))
            if not self.open:
                self.trace.after.append(call)

    def _leave_base(self, module: nn.Module, args: Any, output: Any) -> None:
        last = getattr(output, "last_hidden_state", None)
        self.trace.last_hidden = hidden_output(output if last is None else last)
        self.finished = False


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()
