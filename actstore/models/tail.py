"""What lies between the last block and the head: the final norm, where there is one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from actstore.errors import UnsupportedModelError
from actstore.models.tensors import agreement, gap
from actstore.models.trace import Trace


@dataclass(frozen=True, slots=True)
class Tail:
    """Modules applied, row by row, to the output of the last block.

    GPT-2: ``ln_f``; OPT-350m: ``project_out``; BERT: none.
    """

    modules: tuple[nn.Module, ...]
    paths: tuple[str, ...]
    width: int

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map (n, width of the stream) states of layer L to (n, `width`) normed ones."""
        states = rows[None]
        for module in self.modules:
            weight = next(module.parameters(), None)
            states = module(states if weight is None else states.to(weight.device))
        return states[0]


def find_tail(trace: Trace) -> Tail:
    """Follow the last block's output to the base module's own, from call to call.

    Raises
    ------
    UnsupportedModelError
        Something other than modules applied one after the other lies between the two.
    """
    if trace.last_hidden is None:
        raise UnsupportedModelError("check 'final_norm' failed: no last hidden state was returned")
    states, last = trace.leaving[-1], trace.last_hidden
    tolerance = agreement(states.dtype)
    chain = []
    for call in trace.after:
        if gap(states, last) <= tolerance * 1e-2:
            break
        if call.given is None or call.returned is None:
            continue
        if call.given.numel() == states.numel() and gap(call.given, states) <= tolerance * 1e-2:
            chain.append(call)
            states = call.returned
    if states.shape[-1] != last.shape[-1] or gap(states, last) > tolerance * 1e-2:
        raise UnsupportedModelError(
            "check 'final_norm' failed: the modules after the last block "
            f"({', '.join(c.path for c in trace.after) or 'none'}) do not lead from its output to "
            "last_hidden_state; this architecture needs code of its own"
        )
    return Tail(tuple(c.module for c in chain), tuple(c.path for c in chain), last.shape[-1])
