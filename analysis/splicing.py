"""Forward passes in which some blocks, or modules inside blocks, are replaced.

A replaced block or module is not run: its place in the model's own forward pass is taken by a
function of the states, at all positions, so that everything after it sees consistent states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from actstore.models.batch import padded
from actstore.models.running import StopForward, call_with_ids, hooked
from actstore.models.tensors import hidden_input, hidden_output, rows_of
from analysis.rerunning import Batch

if TYPE_CHECKING:
    from actstore.models import LanguageModel

Change = Callable[[torch.Tensor], torch.Tensor]
PRE_NORM = ("ln1", "attn", "resid_mid", "ln2", "mlp")


@dataclass(frozen=True, slots=True)
class Splice:
    """What to do in other ways than the model does.

    Attributes
    ----------
    blocks : mapping of block to function or None
        What is done to the stream instead of the block; None passes it on as it is.
    inside : mapping of (block, site) to (site read, function)
        What takes the place of a site's output, made from another site's output of the same
        block, or from the input of the module itself where that is None.
    spared : int
        Leading positions of every sequence that keep what the unchanged run has there.
    """

    blocks: Mapping[int, Change | None] = field(default_factory=dict)
    inside: Mapping[tuple[int, str], tuple[str | None, Change]] = field(default_factory=dict)
    spared: int = 0

    @property
    def start(self) -> int | None:
        """The first block that is not left as it is."""
        touched = [*self.blocks, *(block for block, _ in self.inside)]
        return min(touched, default=None)


class Splicer:
    """Runs one batch of a model, first as it is and then spliced, as often as asked.

    Attributes
    ----------
    layers : list of tensors (batch, time, width)
        The stream 0…L of the unchanged run, at all positions.
    """

    def __init__(self, model: LanguageModel, batch: Batch) -> None:
        self.model = model
        self.stack = model.stack
        self.inner = model.inner
        self._ids, self._mask = padded(batch.ids, model.pad_id)
        self._rows = batch.rows
        self._outputs: dict[tuple[int, str], Any] = {}
        self._running = -1
        self.layers: list[torch.Tensor] = []
        with model.exclusive():
            self._look()

    def original(self) -> NDArray[np.float32]:
        """(n, width) states of layer L at the batch's rows, nothing replaced."""
        return self._picked(self.layers[-1])

    def spliced(self, splice: Splice) -> NDArray[np.float32]:
        """(n, width) states of layer L at the batch's rows, with the replacements.

        The blocks before the first replacement are not run again.
        """
        start = splice.start
        if start is None:
            return self.original()
        for block, site in splice.inside:
            if site not in self.inner:
                raise AnalysisError(f"{self.model.name} has no site {site!r} in block {block}")
        with self.model.exclusive():
            return self._picked(self._run(splice, start))

    def _look(self) -> None:
        """Run unchanged; keep the stream and in what form each module returns its output."""
        sites = {site: where.path for site, where in self.inner.items() if where.at == "output"}
        kept: list[torch.Tensor] = []

        def before(module: Any, args: Any, kwargs: Any) -> None:
            self._running += 1
            states = hidden_input(args, kwargs)
            assert states is not None
            kept.append(states.clone())

        def after(module: Any, args: Any, output: Any) -> None:
            self._outputs[self._running, ""] = form_of(output)
            if self._running + 1 == len(self.stack.blocks):
                states = hidden_output(output)
                assert states is not None
                kept.append(states.clone())
                raise StopForward

        def inside(site: str) -> Callable[..., None]:
            def note(module: Any, args: Any, output: Any) -> None:
                self._outputs[self._running, site] = form_of(output)

            return note

        handles: list[Any] = []
        for block in set(self.stack.blocks):
            for site, path in sites.items():
                module = block.get_submodule(path)
                handles.append(module.register_forward_hook(inside(site)))
            handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(block.register_forward_hook(after))
        self._running = -1
        with hooked(*handles), suppress(StopForward):
            self._call()
        self.layers = kept

    def _run(self, splice: Splice, start: int) -> torch.Tensor:
        self._running = -1
        final: list[torch.Tensor] = []
        seen: dict[tuple[int, str], torch.Tensor] = {}

        def block_forward(original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                self._running = n = self._running + 1
                states = hidden_input(args, kwargs)
                assert states is not None
                if n < start:
                    # a copy, since some models add to what they are given in place
                    own = self.layers[n + 1]
                    return like(self._outputs[n, ""], own.clone() if n + 1 == start else own)
                if n in splice.blocks:
                    change = splice.blocks[n]
                    output = like(
                        self._outputs[n, ""], states if change is None else change(states)
                    )
                else:
                    output = original(*args, **kwargs)
                left = hidden_output(output)
                assert left is not None
                if splice.spared:
                    left = _kept(self.layers[n + 1], left, splice.spared)
                    output = like(self._outputs[n, ""], left)
                if n + 1 == len(self.stack.blocks):
                    final.append(left)
                    raise StopForward
                return output

            return forward

        def inner_forward(site: str, original: Callable[..., Any]) -> Callable[..., Any]:
            where = self.inner[site]

            def forward(*args: Any, **kwargs: Any) -> Any:
                n = self._running
                found = splice.inside.get((n, site))
                if found is None:
                    output = original(*args, **kwargs)
                else:
                    read, change = found
                    states = hidden_input(args, kwargs) if read is None else seen[n, read]
                    assert states is not None
                    made = change(states)
                    if where.scale != 1.0:
                        made = made / where.scale
                    if splice.spared:
                        # what enters is unchanged at those positions, and they see no others
                        own = hidden_output(original(*args, **kwargs))
                        assert own is not None
                        by_time = (*self._ids.shape, -1)  # some models flatten batch and time
                        made = _kept(own.reshape(by_time), made.reshape(by_time), splice.spared)
                    form = self._outputs[n, site]
                    output = like(form, made.reshape(form.shape))
                states = hidden_output(output)
                assert states is not None
                seen[n, site] = states
                return output

            return forward

        read = {source for source, _ in splice.inside.values() if source is not None}
        changed = {site for _, site in splice.inside}
        with ExitStack() as stack:
            for block in set(self.stack.blocks):
                stack.enter_context(instead(block, block_forward(block.forward)))
                for site in sorted(read | changed):
                    module = block.get_submodule(self.inner[site].path)
                    stack.enter_context(instead(module, inner_forward(site, module.forward)))
            stack.enter_context(suppress(StopForward))
            self._call()
        return final[0]

    def _call(self) -> None:
        device = self.model.device
        call_with_ids(self.stack.base, self._ids, self._mask, device)

    def _picked(self, states: torch.Tensor) -> NDArray[np.float32]:
        rows = rows_of(states)
        index = torch.as_tensor(self._rows, device=rows.device)
        picked: NDArray[np.float32] = rows.index_select(0, index).float().cpu().numpy()
        return picked


def _kept(own: torch.Tensor, made: torch.Tensor, leading: int) -> torch.Tensor:
    """(batch, time, width) with the leading positions of one and the rest of the other."""
    return torch.cat([own[:, :leading], made[:, leading:]], dim=1)


def check_spared(model: LanguageModel, spare_first: int) -> None:
    """AnalysisError for a number of leading positions that cannot be spared."""
    if spare_first < 0:
        raise AnalysisError(f"spare_first={spare_first}; it is a number of positions, 0 for none")
    if spare_first and not model.causal:
        raise AnalysisError(
            f"spare_first={spare_first} goes with causal models only: in {model.name} the first "
            "positions see the later ones, which change"
        )


def spared_note(spare_first: int) -> str:
    """What a title says of spared positions; nothing where there are none."""
    if not spare_first:
        return ""
    return ", first token spared" if spare_first == 1 else f", first {spare_first} tokens spared"


@dataclass(frozen=True, slots=True)
class Form:
    """How a module returned its states: alone, or first of a tuple with others."""

    shape: torch.Size
    rest: tuple[Any, ...] | None


def form_of(output: Any) -> Form:
    """In what form a module returned its states."""
    states = hidden_output(output)
    assert states is not None
    return Form(states.shape, None if isinstance(output, torch.Tensor) else tuple(output[1:]))


def like(form: Form, states: torch.Tensor) -> Any:
    """States in the form that a module returns."""
    return states if form.rest is None else (states, *form.rest)


@contextmanager
def instead(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run another function for a while."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


def require_pre_norm(model: LanguageModel) -> None:
    """Refuse models whose blocks are not norm, attention, sum, norm, feed-forward, sum.

    Raises
    ------
    AnalysisError
        It names the site that the model lacks, and why.
    """
    missing = [site for site in PRE_NORM if site not in model.sites]
    if missing:
        raise AnalysisError(
            f"sub-modules can be replaced in blocks of the shape x + attn(ln1(x)), "
            f"c + mlp(ln2(c)) only; {model.name} has no site {missing[0]!r}: "
            f"{model.refused.get(missing[0], 'it was not found')}"
        )
