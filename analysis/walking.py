"""One sequence on its way up a causal model's blocks, position by position.

What `analysis.generating` needs of a model: run one block on some positions against the keys and
values of those before, with the mask and position embeddings that the model itself would give.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from actstore.errors import AnalysisError
from actstore.models.running import StopForward, call_with_ids, hooked
from actstore.models.tensors import hidden_input, hidden_output
from analysis.splicing import Form, form_of, instead, like

if TYPE_CHECKING:
    from actstore.models import LanguageModel

_CACHE_NAMES = ("cache", "past_key_values")
Propagate = Callable[[int, int, torch.Tensor], torch.Tensor]


class Walk:
    """Positions on their way up the blocks, and the cache of those that passed.

    Block n's cache holds the first ``done[n]`` positions. Those numbers fall with n, so that
    what waits below a block is always the end of the sequence.
    """

    def __init__(self, model: LanguageModel, ids: list[int], propagate: Propagate | None) -> None:
        from transformers import DynamicCache

        self.model, self.ids, self.propagate = model, list(ids), propagate
        self.blocks = model.blocks
        self.cache: Any = DynamicCache()
        self.done = [0] * len(self.blocks)
        self.waiting: dict[int, torch.Tensor] = {}
        self._new_cache = DynamicCache
        self._name = _cache_name(model)
        self._forms: dict[int, Form] = {}
        self._windows: dict[int, Any] = {}
        self._prefill()

    def begin(self) -> torch.Tensor:
        """The state of the last position on layer 0, (1, 1, width)."""
        self._windows = {}
        states: torch.Tensor = self._window(0)[0]
        return states

    def through(self, block: int, states: torch.Tensor) -> torch.Tensor:
        """Run a block on the states of the last positions, and on those that wait for it.

        Parameters
        ----------
        states : (1, m, width), the last m positions on layer `block`

        Returns
        -------
        (1, at least m, width) on layer `block` + 1
        """
        first = len(self.ids) - states.shape[1]
        waited = [self.waiting.pop(p) for p in range(self.done[block], first)]
        states = torch.cat([*waited, states], dim=1)
        args, kwargs = self._window(block)[1][block]
        output = hidden_output(self.blocks[block](states, *args, **kwargs))
        assert output is not None
        self.done[block] = len(self.ids)
        return output

    def leave(self, layer: int, states: torch.Tensor) -> None:
        """The last positions stop on this layer: they wait, or keys are made of what is mapped."""
        if self.propagate is None:
            first = len(self.ids) - states.shape[1]
            for number in range(states.shape[1]):
                self.waiting[first + number] = states[:, number : number + 1]
            return
        own = self.cache.update

        def keep(*args: Any, **kwargs: Any) -> Any:
            own(*args, **kwargs)
            raise StopForward

        for block in range(layer, len(self.blocks)):
            args, kwargs = self._window(block)[1][block]
            self.cache.__dict__["update"] = keep
            try:
                with suppress(StopForward):
                    self.blocks[block](self.propagate(layer, block, states), *args, **kwargs)
            finally:
                del self.cache.__dict__["update"]
            self.done[block] = len(self.ids)

    def _window(self, block: int) -> tuple[torch.Tensor, list[tuple[Any, Any]]]:
        """Layer-0 states, and every block's other arguments, for the positions it still lacks.

        The model's own forward pass makes them (mask, position embeddings), with nothing run.
        """
        start = self.done[block]
        if start in self._windows:
            found: tuple[torch.Tensor, list[tuple[Any, Any]]] = self._windows[start]
            return found
        alike = self._new_cache()
        alike.layers = [self.cache.layers[block]] * len(self.blocks) if start else []
        entering: list[torch.Tensor] = []
        calls: list[tuple[Any, Any]] = []

        def recorded(*args: Any, **kwargs: Any) -> Any:
            states = hidden_input(args, kwargs)
            assert states is not None
            entering.append(states)
            rest = [self.cache if value is alike else value for value in args]
            named = {
                k: self.cache if v is alike else v for k, v in kwargs.items() if v is not states
            }
            calls.append((rest[1:] if args and args[0] is states else rest, named))
            if len(calls) == len(self.blocks):
                raise StopForward
            return like(self._forms[len(calls) - 1], states)

        with ExitStack() as stack:
            for one in set(self.blocks):
                stack.enter_context(instead(one, recorded))
            stack.enter_context(suppress(StopForward))
            self._call(self.ids[start:], alike)
        self._windows[start] = entering[0], calls
        return self._windows[start]

    def _prefill(self) -> None:
        """Run all but the last token through everything; learn how blocks return their states."""
        running = [0]

        def after(module: Any, args: Any, output: Any) -> None:
            self._forms[running[0]] = form_of(output)
            running[0] += 1

        with hooked(*(block.register_forward_hook(after) for block in set(self.blocks))):
            self._call(self.ids[:1], self._new_cache())
        if len(self.ids) > 1:
            self._call(self.ids[:-1], self.cache)
            held = [int(layer.get_seq_length()) for layer in self.cache.layers]
            if held != [len(self.ids) - 1] * len(self.blocks):
                raise AnalysisError(
                    f"{self.model.name} does not keep one key/value cache a block, of all "
                    "positions; early exits need one"
                )
            self.done = held

    def _call(self, ids: Sequence[int], cache: Any) -> None:
        device = self.model.device
        batch = np.array([ids], np.int64)
        options = {self._name: cache, "use_cache": True}
        call_with_ids(self.model.base, batch, None, device, **options)


def _cache_name(model: LanguageModel) -> str:
    taken = inspect.signature(type(model.base).forward).parameters
    for name in _CACHE_NAMES:
        if name in taken:
            return name
    raise AnalysisError(f"{model.name} takes no key/value cache; early exits need one")
