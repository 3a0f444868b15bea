"""A transformers model whose structure was found out: its blocks, and how to run it alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from actstore.errors import ActstoreError, ModelError, UnsupportedModelError
from actstore.models.probe import Probed, probe
from actstore.models.provenance import default_name
from actstore.models.running import evaluating, quiet
from actstore.models.sites import InnerSite
from actstore.models.structure import Stack, checked_part, find_stack, input_embedding
from actstore.wording import count


class ExaminedModel:
    """What code that runs a model again, or runs parts of it, needs to know.

    Attributes
    ----------
    model : transformers.PreTrainedModel
    tokenizer : object or None
    name : str
    stack : Stack
        The module that runs the blocks, and the blocks.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        part: Literal["encoder", "decoder"] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or default_name(model) + ("-decoder" if part == "decoder" else "")
        self._part = checked_part(model, part)
        self._lock = threading.RLock()
        self._quiet = False
        self.stack: Stack
        self._found = self._examine()

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The blocks in the order they run; one may come more than once (ALBERT)."""
        return self.stack.blocks

    @property
    def base(self) -> Any:
        """The module that runs the blocks on ``input_ids``, without a head."""
        return self.stack.base

    @property
    def inner(self) -> Mapping[str, InnerSite]:
        """Where inside a block each site is: the module's path, and its input or its output."""
        return self._found.inner

    @property
    def device(self) -> torch.device:
        """Where token ids are to be put."""
        device: torch.device = self._embedding.weight.device
        return device

    @property
    def pad_id(self) -> int:
        """The id that fills up shorter sequences of a batch."""
        return self._pad_id

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the blocks compute in."""
        return self._found.dtype

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the model: no other thread runs it, in evaluation and inference mode.

        Training flags are put back afterwards. May be entered again by the thread that holds it.
        """
        with self._lock:
            if self._quiet:
                # This thread has seen to every module already.
                with torch.inference_mode():
                    yield
                return
            self._quiet = True
            try:
                with quiet(self.model):
                    yield
            finally:
                self._quiet = False

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What ``decode`` gives, as a tensor through which gradients flow.

        Parameters
        ----------
        hidden : (n, width) tensor
            States of ``resid`` layer L, before the final norm.

        Returns
        -------
        (n, vocabulary) tensor of the model's dtype, on the device of its head
            With a graph where the caller has gradients enabled. The weights belong to the graph
            where they require gradients: ask ``torch.autograd.grad`` for those that are wanted.

        Raises
        ------
        ModelError
            The model has no head, or the width is another one.
        """
        found = self._found
        if found.head is None:
            raise ModelError(
                f"{self.name} has no language-model head, so states have no logits; load a "
                "checkpoint with one (…ForCausalLM, …ForMaskedLM)"
            )
        width = found.sites["resid"].width
        if hidden.ndim != 2 or hidden.shape[1] != width:
            raise ModelError(
                f"states of shape {tuple(hidden.shape)} have no logits in {self.name}: (n, "
                f"{width}) is expected"
            )
        with self._lock, evaluating(self.model):
            return found.head.by_model(found.tail(hidden.to(found.head_device, self.dtype)))

    def _examine(self) -> Probed:
        model = self.model
        away = [name for name, weight in model.named_parameters() if weight.device.type == "meta"]
        if away:
            raise ModelError(
                f"{self.name}: the device map has {count(len(away), 'weight')} offloaded, first "
                f"{away[0]}; spread the model over devices that hold it whole"
            )
        try:
            self.stack = find_stack(model, self._part)
            self._embedding = input_embedding(model, self.stack)
            self._pad_id = self._choose_pad_id()
            with quiet(model):
                return probe(model, self.stack, self._embedding, self._pad_id)
        except ActstoreError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise UnsupportedModelError(
                f"check 'forward' failed: {type(model).__name__} raised {type(error).__name__} "
                f"on a few token ids: {reason}"
            ) from error

    def _choose_pad_id(self) -> int:
        config = self.model.config.get_text_config()
        known = (
            getattr(self.tokenizer, "pad_token_id", None),
            getattr(config, "pad_token_id", None),
        )
        size = self._embedding.weight.shape[0]
        # models that skip pads when they count positions mean their own pad id
        return next((int(i) for i in reversed(known) if i is not None and 0 <= i < size), 0)
