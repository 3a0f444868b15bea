"""What the sub-layers of a block read and return themselves, and which places are the same.

`actstore.models.sites` finds what is added to the stream. Here are the sub-layers' own outputs
where a norm or a multiplier stands between (OLMo-2, Gemma 2, Granite), the branches of post-norm
blocks (BERT), whose outputs are normed together with the stream, and the inputs of both. A place
whose states are those of another site is a second name of it, never a second copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from actstore.models.names import Place
from actstore.models.sites import InnerSite, is_norm, same_states
from actstore.models.structure import Stack
from actstore.models.tail import Tail
from actstore.models.trace import Trace

INPUTS = ("attn.in", "mlp.in", "ln1.in", "ln2.in")
OUTPUTS = ("attn.out", "mlp.out")

_Known = dict[Place, list[torch.Tensor]]


@dataclass(slots=True)
class Branches:
    """What was found beside the sites of `find_inner_sites`.

    Attributes
    ----------
    sites : dict of str to InnerSite
    equal : dict of str to Place
        ``attn.in``, ``mlp.out``… where they are another site.
    modules : dict of (str, str) to Place
        The sites that a block's modules take ("input") and return ("output"), by their paths.
    refused : dict of str to str
    post_norm : bool
        Whether each sum is normed behind the sub-layer.
    """

    sites: dict[str, InnerSite] = field(default_factory=dict)
    equal: dict[str, Place] = field(default_factory=dict)
    modules: dict[tuple[str, str], Place] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    post_norm: bool = False


def find_branches(trace: Trace, inner: Mapping[str, InnerSite]) -> Branches:
    """Find the sub-layers' own inputs and outputs; see the module."""
    found = Branches()
    known = _known(trace, inner)
    raw = _raw_outputs(trace, inner)
    if not raw:
        raw, normed = _post_norm(trace)
        found.post_norm = bool(raw)
        if normed:
            width = trace.entering[0].shape[-1]
            found.sites["mlp.in"] = InnerSite(
                normed, "output", 1.0, width, "the normed sum that the feed-forward reads"
            )
            known[Place("mlp.in")] = _values(trace, found.sites["mlp.in"])
    why = "no sub-layer of its blocks could be told apart"
    for name in (*OUTPUTS, *INPUTS):
        found.refused[name] = why
    for name, site in raw.items():
        values = _values(trace, site)
        place = _same(values, known)
        if place is None:
            found.sites[name] = site
            known[Place(name)] = values
        else:
            found.equal[name] = place
    for name, site in raw.items():
        branch = name.removesuffix(".out")
        other = next((s.path for n, s in raw.items() if n != name), "")
        norm = Place("ln2" if branch == "mlp" else "ln1")
        # norms that are still as they were initialised give the same states
        likely = {place: known[place] for place in (norm, *known) if place in known}
        read = _read_by(trace, site.path, other, likely)
        if read is None:
            found.refused[f"{branch}.in"] = "what it reads is none of the other sites"
        elif read.site != f"{branch}.in":
            found.equal[f"{branch}.in"] = read
    for name in ("ln1", "ln2"):
        if name in inner:
            given = _per_block(trace, inner[name].path, "input")
            place = None if given is None else _same(given, known)
            if place is not None:
                found.equal[f"{name}.in"] = place
        else:
            found.refused[f"{name}.in"] = f"it has no site {name!r}"
    for name in (*found.sites, *found.equal):
        found.refused.pop(name, None)
    found.modules = dict(_modules(trace, known))
    for name, site in {**inner, **found.sites}.items():
        if site.scale == 1.0:
            found.modules[site.path, site.at] = Place(name)
    return found


def module_names(
    model: Any, stack: Stack, tail: Tail, embedding: Any, branches: Branches
) -> dict[str, Place]:
    """Module paths, ``*`` for the block's number, of places that are sites.

    A path alone and ``path.out`` are what the module returns, ``path.in`` is what it takes. A
    block that runs several times (ALBERT) has no path of its own.
    """
    names: dict[str, Place] = {}

    def name(path: str, at: str, place: Place) -> None:
        prefix = f"{model.base_model_prefix}."
        for one in {path, path.removeprefix(prefix)} - {""}:
            for end in (".in",) if at == "input" else ("", ".out"):
                names.setdefault(one + end, place)

    paths = {module: path for path, module in model.named_modules()}
    if len(set(stack.blocks)) == len(stack.blocks):
        name(stack.pattern, "input", Place("resid"))
        name(stack.pattern, "output", Place("resid", 1))
        for (path, at), place in branches.modules.items():
            name(f"{stack.pattern}.{path}", at, place)
    name(paths[embedding], "output", Place("embed"))
    if tail.modules:
        name(paths[tail.modules[-1]], "output", Place("final_norm"))
    return names


def _known(trace: Trace, inner: Mapping[str, InnerSite]) -> _Known:
    known = {
        Place("resid"): trace.entering,
        Place("resid", 1): trace.leaving,
    }
    for name, site in inner.items():
        known[Place(name)] = _values(trace, site)
    return known


def _values(trace: Trace, site: InnerSite) -> list[torch.Tensor]:
    values = _per_block(trace, site.path, site.at)
    assert values is not None, f"{site.path} was found in every block"
    return values if site.scale == 1.0 else [value * site.scale for value in values]


def _per_block(trace: Trace, path: str, at: str) -> list[torch.Tensor] | None:
    """What a module takes or returns, block by block; None where one of them has none."""
    values = []
    for calls in trace.inside:
        call = next((call for call in calls if call.path == path), None)
        value = None if call is None else (call.given if at == "input" else call.returned)
        if value is None:
            return None
        values.append(value)
    return values


def _same(values: list[torch.Tensor], known: _Known) -> Place | None:
    """The known place that has these states in every block."""
    for place, theirs in known.items():
        if all(same_states(a, b) for a, b in zip(values, theirs, strict=True)):
            return place
    return None


def _raw_outputs(trace: Trace, inner: Mapping[str, InnerSite]) -> dict[str, InnerSite]:
    """The outputs of attention and feed-forward before a norm or a multiplier."""
    raw = {}
    for name, what in (("attn", "attention"), ("mlp", "feed-forward")):
        if name not in inner:
            return {}
        site = inner[name]
        path = site.path
        last = next(call for call in trace.inside[0] if call.path == path)
        if is_norm(last):
            before = _path_before(trace, path)
            path = path if before is None else before
        raw[f"{name}.out"] = InnerSite(
            path, "output", 1.0, site.width, f"what {what} itself returns, before norm or scale"
        )
    return raw


def _path_before(trace: Trace, norm: str) -> str | None:
    """The outermost module whose output is what a norm reads."""
    given = _per_block(trace, norm, "input")
    if given is None:
        return None
    for path in _outermost_first(trace, norm):
        returned = _per_block(trace, path, "output")
        if returned is not None and all(map(same_states, returned, given)):
            return path
    return None


def _post_norm(trace: Trace) -> tuple[dict[str, InnerSite], str]:
    """The two branches of a block ``m = norm(x + a)``, ``y = norm(m + f)``, and the first norm."""
    width = trace.entering[0].shape[-1]
    norms = [call.path for call in trace.inside[0] if is_norm(call)]
    for number, first in enumerate(norms):
        attention = _branch(trace, first, trace.entering)
        middle = _per_block(trace, first, "output")
        if attention is None or middle is None:
            continue
        for second in norms[number + 1 :]:
            out = _per_block(trace, second, "output")
            feed_forward = _branch(trace, second, middle)
            if out is None or feed_forward is None or not all(map(same_states, out, trace.leaving)):
                continue
            text = "what {} itself returns; its sum with the stream is normed"
            return {
                "attn.out": InnerSite(attention, "output", 1.0, width, text.format("attention")),
                "mlp.out": InnerSite(
                    feed_forward, "output", 1.0, width, text.format("the feed-forward")
                ),
            }, first
    return {}, ""


def _branch(trace: Trace, norm: str, stream: list[torch.Tensor]) -> str | None:
    """The module whose output, added to the stream, is what a norm reads."""
    given = _per_block(trace, norm, "input")
    if given is None:
        return None
    for path in _outermost_first(trace, norm):
        returned = _per_block(trace, path, "output")
        if returned is not None and all(
            a.numel() == x.numel() and same_states(g, x + a.reshape(x.shape))
            for a, g, x in zip(returned, given, stream, strict=True)
        ):
            return path
    return None


def _outermost_first(trace: Trace, until: str) -> list[str]:
    paths = []
    for call in trace.inside[0]:
        if call.path == until:
            break
        paths.append(call.path)
    return sorted(dict.fromkeys(paths), key=lambda path: path.count("."))


def _read_by(trace: Trace, path: str, other: str, known: _Known) -> Place | None:
    """The known place that a sub-layer reads: itself, what it is part of, or what ran before."""
    steps = path.split(".")
    within = [".".join(steps[:n]) for n in range(len(steps), 0, -1)]
    within = [one for one in within if not other.startswith(f"{one}.")]
    apart = other.split(".")[0]
    before: list[str] = []
    for call in trace.inside[0]:
        if call.path == path:
            break
        if not is_norm(call) and (call.path.split(".")[0] != apart or apart == steps[0]):
            before.insert(0, call.path)
    for candidate in (*within, *before):
        given = _per_block(trace, candidate, "input")
        place = None if given is None else _same(given, known)
        if place is not None and place != Place("resid", 1):
            return place
    return None


def _modules(trace: Trace, known: _Known) -> Iterator[tuple[tuple[str, str], Place]]:
    seen: set[str] = set()
    for call in trace.inside[0]:
        if call.path in seen:
            continue
        seen.add(call.path)
        for at, value in (("input", call.given), ("output", call.returned)):
            if value is None or _first_same(value, known) is None:
                continue
            values = _per_block(trace, call.path, at)
            place = None if values is None else _same(values, known)
            if place is not None:
                yield (call.path, at), place


def _first_same(value: torch.Tensor, known: _Known) -> Place | None:
    return next((p for p, theirs in known.items() if same_states(value, theirs[0])), None)
