"""Where in a block the named sites are, found by what the modules do to the stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from actstore.models.structure import Stack
from actstore.models.tail import Tail
from actstore.models.tensors import rows_of, typical_gap
from actstore.models.trace import Call, Trace


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """One kind of place where activations can be captured.

    Attributes
    ----------
    name : str
    dim : {"layer", "block"}
        Whether its numbers are places between blocks or blocks.
    size : int
        How many there are along that dimension.
    width : int
        Number of features.
    module : str
        Path of the module that is hooked, ``*`` for the block's number.
    description : str
    """

    name: str
    dim: Literal["layer", "block"]
    size: int
    width: int
    module: str
    description: str


@dataclass(frozen=True, slots=True)
class InnerSite:
    """How a site inside a block is captured: a module's input or output, times a scale."""

    path: str
    at: Literal["input", "output"]
    scale: float
    width: int
    description: str


BLOCK_SITES = ("ln1", "attn", "resid_mid", "ln2", "mlp")
RAW_SITES = ("attn.out", "mlp.in", "mlp.out")
_NORM = re.compile(r"norm|(^|[._])ln(_|\d|$)", re.IGNORECASE)
_ATTENTION = re.compile(r"att", re.IGNORECASE)
_FEED_FORWARD = re.compile(r"mlp|ffn|feed|fc\d|dense|moe|expert", re.IGNORECASE)


def find_inner_sites(trace: Trace, scale: float) -> tuple[dict[str, InnerSite], dict[str, str]]:
    """Find ``attn``, ``mlp``, ``resid_mid``, ``ln1`` and ``ln2`` in every block.

    ``attn`` and ``mlp`` are the two outputs a and f with ``x + s a + s f = y`` in each block,
    where x and y are the stream before and after it and s is 1 or the configuration's
    ``residual_multiplier`` (Granite). A norm after the sub-layer (Gemma 2, OLMo 2) is thereby
    part of the site, and a sub-layer that returns the residual already added (BLOOM, MPT) is
    passed over for the module inside it.

    Returns
    -------
    sites, refused
        What was found, and for each name that was not the reason.
    """
    scales = [1.0] if scale == 1.0 else [1.0, scale]
    pair = next((found for s in scales if (found := _additive_pair(trace, s))), None)
    if pair is None:
        why = (
            "no two modules add up to the output in every block (a norm follows the sum, there "
            "are not two sub-layers, or blocks differ)"
        )
        return {}, dict.fromkeys(BLOCK_SITES, why)
    first, second, factor = pair
    times = "" if factor == 1.0 else f", times the residual multiplier {factor:g}"
    width = trace.entering[0].shape[-1]
    sites = {
        "attn": InnerSite(first, "output", factor, width, f"attention's addition{times}"),
        "mlp": InnerSite(second, "output", factor, width, f"feed-forward's addition{times}"),
    }
    refused: dict[str, str] = {}

    def middle(block: int) -> torch.Tensor:
        added = _call(trace.inside[block], first)
        x = trace.entering[block]
        return x if added is None else x + factor * added.reshape(x.shape)

    reader = _path_where(trace, lambda block, call: same_states(call.given, middle(block)))
    if reader is None:
        refused["resid_mid"] = (
            "attention and feed-forward run in parallel, so nothing reads stream + attn"
        )
    else:
        sites["resid_mid"] = InnerSite(
            reader, "input", 1.0, width, "the stream between attention and feed-forward"
        )
    norms = _paths_where(
        trace, lambda block, call: is_norm(call) and same_states(call.given, trace.entering[block])
    )
    later = _paths_where(
        trace, lambda block, call: is_norm(call) and same_states(call.given, middle(block))
    )
    second_norms = later or norms[1:]
    for name, paths, reads in (("ln1", norms, "attention"), ("ln2", second_norms, "feed-forward")):
        if paths:
            sites[name] = InnerSite(
                paths[0], "output", 1.0, width, f"the norm's output that {reads} reads"
            )
        else:
            refused[name] = f"no norm of its own stands before {reads}"
    return sites, refused


def _additive_pair(trace: Trace, scale: float) -> tuple[str, str, float] | None:
    candidates = [c for c in trace.inside[0] if _fits(c.returned, trace.entering[0])]
    # outermost first: a module is preferred to the last of its children
    pairs = sorted(
        (
            (a.path, f.path)
            for i, a in enumerate(candidates)
            for f in candidates[i + 1 :]
            if a.path != f.path
        ),
        key=lambda pair: (pair[0].count("."), pair[1].count(".")),
    )
    for a, f in pairs:
        if all(_adds_up(trace, block, a, f, scale) for block in range(len(trace.inside))):
            if _FEED_FORWARD.search(a) and _ATTENTION.search(f) and not _ATTENTION.search(a):
                return f, a, scale
            return a, f, scale
    return None


def _adds_up(trace: Trace, block: int, first: str, second: str, scale: float) -> bool:
    x, y = rows_of(trace.entering[block]).double(), rows_of(trace.leaving[block]).double()
    outputs = [_call(trace.inside[block], path) for path in (first, second)]
    if any(not _fits(out, x) for out in outputs):
        return False
    a, f = (scale * out.reshape(x.shape).to(x) for out in outputs if out is not None)
    scope = x.norm(dim=1) + a.norm(dim=1) + f.norm(dim=1)
    error = (x + a + f - y).norm(dim=1) / scope.clamp_min(1e-30)
    precision = torch.finfo(trace.entering[block].dtype).eps
    return bool(error.median() <= 4 * precision)


def _fits(tensor: torch.Tensor | None, stream: torch.Tensor) -> bool:
    return tensor is not None and tensor.numel() == stream.numel()


def same_states(tensor: torch.Tensor | None, stream: torch.Tensor) -> bool:
    """Whether states are the same up to rounding."""
    if tensor is None or not _fits(tensor, stream):
        return False
    return typical_gap(tensor, stream) <= 4 * torch.finfo(stream.dtype).eps


def is_norm(call: Call) -> bool:
    """Whether a module is a norm, by its own name or its class's."""
    return bool(
        _NORM.search(call.path.rpartition(".")[2]) or _NORM.search(type(call.module).__name__)
    )


def _call(calls: list[Call], path: str) -> torch.Tensor | None:
    return next((c.returned for c in calls if c.path == path), None)


def _paths_where(trace: Trace, holds: Callable[[int, Call], bool]) -> list[str]:
    """Paths, in calling order, for which ``holds`` in every block."""
    kept: list[str] | None = None
    for block, calls in enumerate(trace.inside):
        here = [call.path for call in calls if holds(block, call)]
        kept = list(dict.fromkeys(here)) if kept is None else [p for p in kept if p in here]
    return kept or []


def _path_where(trace: Trace, holds: Callable[[int, Call], bool]) -> str | None:
    return next(iter(_paths_where(trace, holds)), None)


def describe_sites(
    stack: Stack,
    trace: Trace,
    tail: Tail,
    inner: Mapping[str, InnerSite],
    embedding: Any,
) -> dict[str, SiteSpec]:
    """The sites of a model, the stream's first."""
    count, width = len(stack.blocks), trace.leaving[-1].shape[-1]
    path = next((n for n, m in stack.base.named_modules() if m is embedding), "")
    prefix = f"{stack.base_path}." if stack.base_path else ""
    after = " → ".join(prefix + p for p in tail.paths) or stack.pattern.replace("*", str(count - 1))
    specs = [
        SiteSpec(
            "resid",
            "layer",
            count + 1,
            width,
            stack.pattern,
            "the residual stream: layer 0 enters the first block, layer l leaves block l - 1, "
            f"layer {count} is before the final norm",
        ),
        SiteSpec(
            "final_norm",
            "layer",
            1,
            tail.width,
            after,
            "what the head is given"
            + ("" if tail.paths else ": there is no norm after the blocks"),
        ),
        SiteSpec(
            "embed",
            "layer",
            1,
            int(embedding.weight.shape[1]),
            prefix + path,
            "the token embedding alone",
        ),
    ]
    specs += [
        SiteSpec(
            name,
            "block",
            count,
            inner[name].width,
            f"{stack.pattern}.{inner[name].path}"
            + (" (input)" if inner[name].at == "input" else ""),
            inner[name].description,
        )
        for name in (*BLOCK_SITES, *RAW_SITES)
        if name in inner
    ]
    return {spec.name: spec for spec in specs}
