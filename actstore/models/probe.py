"""The checks made when a model is loaded: one tiny forward pass and a padded one.

Nothing about an architecture is believed. Each check has a name, and a failure says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from actstore.errors import UnsupportedModelError
from actstore.models.branches import find_branches, module_names
from actstore.models.capture import capture_rows
from actstore.models.head import Head
from actstore.models.names import Place
from actstore.models.running import call_with_ids, foreign_hooks_removed
from actstore.models.sites import (
    BLOCK_SITES,
    InnerSite,
    SiteSpec,
    describe_sites,
    find_inner_sites,
)
from actstore.models.structure import Stack
from actstore.models.tail import Tail, find_tail
from actstore.models.tensors import agreement, gap, typical_gap
from actstore.models.trace import Trace, trace_forward

_TOKENS = 6
_SHORTER = 4


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe found out."""

    tail: Tail
    head: Head | None
    head_device: Any
    inner: dict[str, InnerSite]
    sites: dict[str, SiteSpec]
    refused: dict[str, str]
    equal: dict[str, Place]
    hidden_states: list[tuple[str, int]]
    post_norm: bool
    causal: bool
    dtype: torch.dtype
    vocab_size: int
    max_length: int | None


def probe(model: Any, stack: Stack, embedding: Any, pad_id: int) -> Probed:
    """Run the checks; `actstore.models.running.quiet` stands around this call.

    Checks
    ------
    forward, finite
        The model runs on plain token ids and gives finite states.
    blocks, stream
        Each block runs once, in order, and takes and returns one hidden state.
    chaining
        What enters block l + 1 is what left block l, and both are transformers' own
        ``hidden_states`` (but for the last, which many models give after the final norm).
    final_norm
        The modules behind the last block lead from its output to ``last_hidden_state``.
    logits
        The head applied to those gives the model's own logits, where it has a head.
    alone
        States in a padded batch equal those of the same tokens run alone.
    additivity
        Which sub-modules' outputs add up to the stream (it decides which sites there are).

    Causality is measured too: whether a changed last token moves earlier states.
    """
    ids = _tokens(model, embedding)
    whole = stack.runner is not None or not model.config.is_encoder_decoder
    has_head = _unembeds(model) and whole
    if has_head and model is stack.base:
        raise UnsupportedModelError(
            f"check 'base' failed: {type(model).__name__} runs its blocks and its head in one; "
            "load it through AutoModel to go without the head"
        )
    device = embedding.weight.device
    runner = model if has_head else stack.runner or stack.base
    with foreign_hooks_removed(model):
        trace = trace_forward(
            stack,
            lambda: call_with_ids(
                runner, ids, None, device, start=stack.start, output_hidden_states=True
            ),
            (int(ids.shape[0]), int(ids.shape[1]) + stack.n_start),
        )
    _check_finite(stack, trace)
    _check_chaining(stack, trace)
    tail = find_tail(trace)
    causal = _is_causal(stack, trace, ids, device)
    # heads without vocabulary logits (classifiers) or with several outputs are no heads here
    logits = getattr(trace.result, "logits", None) if has_head else None
    head = Head(model, stack.base, stack.start) if logits is not None and logits.ndim == 3 else None
    vocabulary = int(embedding.weight.shape[0])
    if head is not None:
        vocabulary = _check_head(head, tail, trace)
    scale = float(getattr(model.config.get_text_config(), "residual_multiplier", None) or 1.0)
    inner, refused = find_inner_sites(trace, scale)
    branches = find_branches(trace, inner)
    inner.update(branches.sites)
    refused.update(branches.refused)
    sites = describe_sites(stack, trace, tail, inner, embedding)
    for name in BLOCK_SITES:
        if name not in sites and name not in refused:
            refused[name] = "no such place was found in its blocks"
    found = Probed(
        tail,
        head,
        trace.last_hidden.device if trace.last_hidden is not None else device,
        inner,
        sites,
        refused,
        {**branches.equal, **module_names(model, stack, tail, embedding, branches)},
        _hidden_states(trace),
        branches.post_norm,
        causal,
        trace.leaving[-1].dtype,
        vocabulary,
        _position_limit(model, stack, embedding),
    )
    _check_alone(stack, embedding, found, ids, trace, pad_id)
    return found


def _tokens(model: Any, embedding: Any) -> np.ndarray:
    """Two sequences of ordinary tokens that differ in the last one."""
    size = embedding.weight.shape[0]
    config = model.config.get_text_config()
    special = {
        value
        for key, values in config.to_dict().items()
        if key.endswith(("token_id", "token_index"))
        for value in (values if isinstance(values, list) else [values])
    }
    ordinary = [i for i in range(min(size, 4096)) if i not in special] or list(range(size))
    draw = np.random.default_rng(0).choice(len(ordinary), _TOKENS + 1, replace=len(ordinary) < 8)
    chosen = np.array(ordinary)[draw]
    if chosen[-1] == chosen[-2]:
        chosen[-1] = next(i for i in (*ordinary, *range(size)) if i != chosen[-2])
    return np.stack([chosen[:_TOKENS], np.append(chosen[: _TOKENS - 1], chosen[-1])])


def _unembeds(model: Any) -> bool:
    try:
        return model.get_output_embeddings() is not None
    except (AttributeError, NotImplementedError):
        return False


def _check_finite(stack: Stack, trace: Trace) -> None:
    for layer, states in enumerate((trace.entering[0], *trace.leaving)):
        if not bool(torch.isfinite(states).all()):
            raise UnsupportedModelError(
                f"check 'finite' failed: layer {layer} of {stack.pattern} holds NaN or infinity "
                f"in {states.dtype}; load it with dtype='float32' or 'bfloat16', or another "
                "attn_implementation"
            )


def _check_chaining(stack: Stack, trace: Trace) -> None:
    count = len(stack.blocks)
    tolerance = 4 * torch.finfo(trace.leaving[0].dtype).eps
    for layer in range(count):
        states = trace.entering[layer]
        if layer and gap(states, trace.leaving[layer - 1]) > tolerance:
            raise UnsupportedModelError(
                f"check 'chaining' failed: what enters block {layer} of {stack.pattern} is not "
                f"what left block {layer - 1}"
            )
    own = _own_hidden_states(trace)
    if len(own) != count + 1:
        return
    # most models list the states before each block, Mamba those after it
    streams = (trace.entering, trace.leaving)
    distances = [max(map(gap, stream, own[:count])) for stream in streams]
    if min(distances) > tolerance:
        raise UnsupportedModelError(
            f"check 'chaining' failed: the states around the blocks {stack.pattern} are not "
            f"transformers' hidden_states[0…{count - 1}]"
        )


def _own_hidden_states(trace: Trace) -> Sequence[Any]:
    names = ("decoder_hidden_states", "hidden_states")
    return next((own for name in names if (own := getattr(trace.result, name, None))), ())


def _hidden_states(trace: Trace) -> list[tuple[str, int]]:
    """Which site and layer each of transformers' own ``hidden_states`` is; empty if one is none."""
    own = _own_hidden_states(trace)
    count = len(trace.leaving)
    if len(own) != count + 1 or trace.last_hidden is None:
        return []
    stream = [("resid", layer) for layer in range(count + 1)]
    states = {("resid", layer): trace.entering[layer] for layer in range(count)}
    states["resid", count] = trace.leaving[-1]
    tolerance = 4 * torch.finfo(trace.leaving[0].dtype).eps
    places = []
    for index, theirs in enumerate(own):
        near = [place for place in stream if index <= place[1] <= index + 1]
        found = next((p for p in near if gap(states[p], theirs) <= tolerance), None)
        if found is None and gap(trace.last_hidden, theirs) <= tolerance:
            found = ("final_norm", 0)
        if found is None:
            return []
        places.append(found)
    return places


def _is_causal(stack: Stack, trace: Trace, ids: np.ndarray, device: Any) -> bool:
    """Whether states before the last position are the same in both sequences.

    In half precision a small influence of the last token is told from rounding by what rounding
    does to one sequence that is run twice in a batch.
    """
    last = trace.leaving[-1]
    moved = gap(last[0, :-1], last[1, :-1])
    if last.dtype in (torch.float32, torch.float64) or moved == 0.0:
        return moved <= 1e-5
    twice = ids[[0, 0]]
    again = trace_forward(
        stack,
        lambda: call_with_ids(stack.runner or stack.base, twice, None, device, start=stack.start),
        (2, int(ids.shape[1]) + stack.n_start),
    ).leaving[-1]
    return moved <= 4 * gap(again[0, :-1], again[1, :-1])


def _check_head(head: Head, tail: Tail, trace: Trace) -> int:
    logits = trace.result.logits
    rows = tail(trace.leaving[-1].reshape(-1, trace.leaving[-1].shape[-1]))
    head.prepare(rows)
    if not head.agrees(rows, logits.reshape(len(rows), -1)):
        raise UnsupportedModelError(
            "check 'logits' failed: the head applied to the final norm of the last block's output "
            "does not give the model's own logits; load the base model to go without a head"
        )
    return int(logits.shape[-1])


def _check_alone(
    stack: Stack, embedding: Any, found: Probed, ids: np.ndarray, trace: Trace, pad_id: int
) -> None:
    long, short = ids[0], ids[0, :_SHORTER]
    layer = len(stack.blocks)

    def states(batch: list[np.ndarray]) -> torch.Tensor:
        longest = max(len(sequence) for sequence in batch)
        rows = np.concatenate([i * longest + np.arange(len(s)) for i, s in enumerate(batch)])
        wanted: Mapping[str, Sequence[int]] = {"resid": [layer]}
        return capture_rows(
            stack,
            found.tail,
            found.inner,
            found.sites,
            embedding,
            batch,
            rows,
            wanted,
            pad_id=pad_id,
            dtype=found.dtype,
        )["resid"][0]

    together = states([short, long])
    full = trace.leaving[-1][0, stack.n_start :]
    alone = full[:_SHORTER] if found.causal else states([short])
    expected = torch.cat([alone.cpu(), full.cpu()])
    full_precision = found.dtype in (torch.float32, torch.float64)
    distance = (gap if full_precision else typical_gap)(together, expected)
    if distance > (2e-4 if full_precision else agreement(found.dtype)):
        raise UnsupportedModelError(
            f"check 'alone' failed: padding moves states by {distance:.2g} of their norm against "
            "the same tokens run alone; another attn_implementation or dtype='float32' may help"
        )


def _position_limit(model: Any, stack: Stack, embedding: Any) -> int | None:
    """Longest sequence of a learned position table; None where positions are computed."""
    config = model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if not isinstance(stated, int):
        return None
    blocks = {m for block in stack.blocks for m in block.modules()}
    for module in stack.base.modules():
        if isinstance(module, nn.Embedding) and module is not embedding and module not in blocks:
            rows = module.num_embeddings
            if rows >= stated and rows - stated <= 8:
                skipped = getattr(module, "offset", None)
                if skipped is None:
                    skipped = 0 if module.padding_idx is None else module.padding_idx + 1
                return rows - int(skipped) - stack.n_start
    return None
