"""Run a model without leaving a trace: eval mode, no gradients, hooks and modes restored."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


class StopForward(Exception):
    """Raised in a hook to end a forward pass whose rest nobody asked for."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; every module's training flag is put back."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and inference mode."""
    with evaluating(model), torch.inference_mode():
        yield


@contextmanager
def hooked(*registrations: Any) -> Iterator[None]:
    """Hold hook handles (anything with ``remove``) and remove them whatever happens."""
    with ExitStack() as stack:
        for handle in registrations:
            stack.callback(handle.remove)
        yield


@contextmanager
def foreign_hooks_removed(model: nn.Module) -> Iterator[None]:
    """Undo the permanent hooks that transformers installs for ``output_hidden_states=True``."""
    flag = "_output_capturing_hooks_installed"
    before = {module: set(module._forward_hooks) for module in model.modules()}
    flagged = {module for module in model.modules() if flag in module.__dict__}
    try:
        yield
    finally:
        for module, kept in before.items():
            for key in set(module._forward_hooks) - kept:
                del module._forward_hooks[key]
                module._forward_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
            if flag in module.__dict__ and module not in flagged:
                delattr(module, flag)


def call_with_ids(
    module: nn.Module,
    batch: np.ndarray,
    mask: np.ndarray | None,
    device: Any,
    *,
    start: int | None = None,
    **extra: Any,
) -> Any:
    """Call a model on token ids with those of our usual arguments that its forward takes.

    With ``start``, an encoder-decoder: its decoder gets that id and then the same ids. Position
    ids are left to the model: some count from another number than 0, or skip pads.
    """
    arguments: dict[str, Any] = {"use_cache": False, "return_dict": True, **extra}
    parameters = inspect.signature(type(module).forward).parameters
    # transformers' decorated forwards take flags such as return_dict through **kwargs
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {key: value for key, value in arguments.items() if key in parameters}
    elif "use_cache" not in parameters:
        del arguments["use_cache"]
    if mask is not None:
        arguments["attention_mask"] = torch.as_tensor(mask, device=device)
    if start is not None:
        own = np.insert(batch, 0, start, axis=1)
        arguments["decoder_input_ids"] = torch.as_tensor(own, device=device)
    return module(input_ids=torch.as_tensor(batch, device=device), **arguments)
