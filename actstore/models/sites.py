"""Where in a block the named sites are, found by what the modules do to the stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from actstore.errors import SiteError
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
            "no two modules of a block add up to its output (a norm follows the sum, or there "
            "are no two sub-layers)"
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

    reader = _path_where(trace, lambda block, call: _is(call.given, middle(block)))
    if reader is None:
        refused["resid_mid"] = (
            "attention and feed-forward run in parallel, so nothing reads stream + attn"
        )
    else:
        sites["resid_mid"] = InnerSite(
            reader, "input", 1.0, width, "the stream between attention and feed-forward"
        )
    norms = _paths_where(
        trace, lambda block, call: _is_norm(call) and _is(call.given, trace.entering[block])
    )
    later = _paths_where(
        trace, lambda block, call: _is_norm(call) and _is(call.given, middle(block))
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


def _is(tensor: torch.Tensor | None, stream: torch.Tensor) -> bool:
    if tensor is None or not _fits(tensor, stream):
        return False
    return typical_gap(tensor, stream) <= 4 * torch.finfo(stream.dtype).eps


def _is_norm(call: Call) -> bool:
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


def resolve_sites(
    model: str,
    specs: dict[str, SiteSpec],
    refused: dict[str, str],
    sites: Sequence[str] | str,
    layers: Sequence[int] | slice | int | None,
) -> dict[str, list[int]]:
    """Turn names and (possibly negative) numbers into site → sorted absolute numbers."""
    names = [sites] if isinstance(sites, str) else list(dict.fromkeys(sites))
    if not names:
        raise SiteError(f"no sites asked for; {model} has {', '.join(specs)}")
    resolved = {}
    for name in names:
        if name not in specs:
            raise SiteError(_unknown(model, specs, refused, name))
        spec = specs[name]
        if layers is None or spec.size == 1:
            resolved[name] = list(range(spec.size))
            continue
        if isinstance(layers, slice):
            wanted: Sequence[int] = range(spec.size)[layers]
        else:
            wanted = [layers] if isinstance(layers, int) else layers
        if len(wanted) == 0:
            raise SiteError(f"no {spec.dim}s asked for; {model} has 0…{spec.size - 1} of {name}")
        resolved[name] = sorted({_absolute(model, spec, int(n)) for n in wanted})
    return resolved


def _absolute(model: str, spec: SiteSpec, number: int) -> int:
    if -spec.size <= number < spec.size:
        return number % spec.size
    note = " (0 is the embedding)" if spec.name == "resid" else ""
    raise SiteError(
        f"{spec.dim} {number} asked for, but {model} has {spec.dim}s 0…{spec.size - 1}{note}"
    )


def _unknown(model: str, specs: dict[str, SiteSpec], refused: dict[str, str], name: str) -> str:
    if name in refused:
        return f"site {name!r} is refused on {model}: {refused[name]}; it has {', '.join(specs)}"
    if name.startswith("hidden_states"):
        return (
            f"site {name!r} is ambiguous: hidden_states[-1] is taken after the final norm in some "
            "models and before it in others; ask for 'resid' (layers 0…L, before the norm) or "
            "'final_norm'"
        )
    return f"site {name!r} asked for, but {model} has {', '.join(specs)}"
