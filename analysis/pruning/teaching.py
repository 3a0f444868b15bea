"""The stream of teacher and student on the same tokens, for one to learn from the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from actstore.models.running import StopForward, hooked
from actstore.models.tensors import hidden_input, hidden_output
from analysis.pruning.modules import blocks_of

if TYPE_CHECKING:
    from actstore.models import LanguageModel


def layerwise(
    teacher: LanguageModel, student: Any, ids: torch.Tensor, blocks: list[int]
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """What enters each linear block of the student, and what leaves the original block."""
    with teaching(teacher):
        _, behind = run_blocks(teacher.model, teacher.blocks, ids, blocks, stop=True)
    entered: dict[int, torch.Tensor] = {}

    def before(block: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            states = hidden_input(args, kwargs)
            assert states is not None
            entered[block] = states.clone()
            if block == blocks[-1]:
                raise StopForward

        return hook

    layers = blocks_of(student)
    handles = [
        layers[block].register_forward_pre_hook(before(block), with_kwargs=True) for block in blocks
    ]
    with hooked(*handles), suppress(StopForward):
        student(input_ids=ids.to(next(student.parameters()).device), use_cache=False)
    return entered, behind


def run_blocks(
    model: Any, layers: Any, ids: torch.Tensor, blocks: Any, *, stop: bool = False
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Logits, and the stream behind some blocks; with `stop` nothing after the last of them."""
    behind: dict[int, torch.Tensor] = {}
    wanted = list(blocks)

    def after(block: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            states = hidden_output(output)
            assert states is not None
            behind[block] = states
            if stop and block == max(wanted):
                raise StopForward

        return hook

    handles = [layers[block].register_forward_hook(after(block)) for block in wanted]
    logits = torch.empty(0)
    with hooked(*handles), suppress(StopForward):
        device = next(model.parameters()).device
        logits = model(input_ids=ids.to(device), use_cache=False).logits
    return logits, behind


@contextmanager
def teaching(teacher: LanguageModel) -> Iterator[None]:
    """The teacher held, in evaluation mode, its results usable in the student's graph."""
    with teacher.exclusive(), torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def all_trained(model: Any) -> Iterator[None]:
    """Every parameter trained, whatever it was before and is again afterwards."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for parameter in before:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)
