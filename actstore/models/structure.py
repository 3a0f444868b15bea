"""Find the module that runs the blocks, and the blocks, from a model's structure."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from actstore.errors import ModelError, UnsupportedModelError
from actstore.models.families import Family, family_of

_DEPTH_NAMES = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The residual stack of a model.

    Attributes
    ----------
    base : nn.Module
        Runs the stack on ``input_ids`` and returns its last hidden state; no head.
    base_path : str
        Path of ``base`` inside the model ("" where it is the model itself).
    blocks : tuple of nn.Module
        In the order they run. A module may come more than once (ALBERT).
    pattern : str
        Path of a block inside the model, with ``*`` for its number.
    runner : nn.Module, optional
        Called with the ids, where it is not ``base``: the whole of an encoder-decoder.
    start : int, optional
        For a decoder behind an encoder: the id that stands before the decoder's own ids.
    """

    base: Any
    base_path: str
    blocks: tuple[nn.Module, ...]
    pattern: str
    runner: Any = None
    start: int | None = None

    @property
    def n_start(self) -> int:
        """How many tokens of their own the blocks see before those of a sequence."""
        return 0 if self.start is None else 1


def find_stack(model: Any, part: str | None = None) -> Stack:
    """Return the stack of a transformers model; of an encoder-decoder, the part that is named.

    Raises
    ------
    UnsupportedModelError
        No ``ModuleList``, or more than one, is as long as the configuration's number of layers.
    """
    family = family_of(model.config.model_type)
    outer = _decoder(model) if part == "decoder" else _text_part(model, family)
    config = getattr(outer, "config", model.config).get_text_config()
    if callable(family.blocks):
        found, inner = family.blocks(outer, config)
        blocks = tuple(found)
    else:
        inner, blocks = _find_blocks(outer, config, family, model.config.model_type)
        inner += ".*"
    prefix = _path_of(model, outer)
    pattern = f"{prefix}.{inner}".lstrip(".")
    if part == "decoder":
        return Stack(outer, prefix, blocks, pattern, model, _start_id(model))
    base = outer if family.base is not None else _innermost_model(model, outer, pattern)
    return Stack(base, _path_of(model, base), blocks, pattern)


def input_embedding(model: Any, stack: Stack) -> Any:
    """The module that turns token ids into vectors."""
    for holder in (stack.base, model):
        try:
            embedding = holder.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            continue
        if isinstance(embedding, nn.Module) and hasattr(embedding, "weight"):
            return embedding
    raise UnsupportedModelError(
        f"check 'embedding' failed: neither {type(stack.base).__name__} nor {type(model).__name__} "
        "has input embeddings of its own"
    )


def _decoder(model: Any) -> Any:
    decoder = model.get_decoder()
    if decoder is None or decoder is model:
        raise UnsupportedModelError(
            f"part='decoder' asked for, but {type(model).__name__} gives no decoder of its own"
        )
    return decoder


def _start_id(model: Any) -> int:
    start = model.config.get_text_config().decoder_start_token_id
    start = getattr(model.config, "decoder_start_token_id", None) if start is None else start
    if start is None:
        raise UnsupportedModelError(
            "part='decoder' asked for, but the configuration has no decoder_start_token_id, the "
            "token that stands before the decoder's ids; set it in config.json"
        )
    return int(start)


def checked_part(model: Any, part: str | None) -> str | None:
    """The part of an encoder-decoder that is meant, "encoder" if none is named; None for others."""
    two = bool(model.config.is_encoder_decoder)
    if part is None:
        return "encoder" if two else None
    if part not in ("encoder", "decoder"):
        raise ModelError(f"part={part!r} asked for; choose 'encoder' or 'decoder'")
    if not two:
        raise ModelError(
            f"part={part!r} asked for, but {type(model).__name__} is no encoder-decoder; leave it "
            "out"
        )
    return part


def _path_of(model: Any, wanted: Any) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)


def _text_part(model: Any, family: Family) -> Any:
    """The module to search for blocks: registered, the encoder, the text part, or the base."""
    from transformers import PreTrainedModel

    if family.base is not None:
        return model.base_model.get_submodule(family.base)
    if model.config.is_encoder_decoder:
        return model.get_encoder()
    text = model.config.get_text_config()
    if text is not model.config:
        for part in model.modules():
            if isinstance(part, PreTrainedModel) and part.config.model_type == text.model_type:
                return part
    return model.base_model


def _innermost_model(model: Any, outer: Any, pattern: str) -> Any:
    """The innermost model around the blocks that takes token ids: what the head listens to.

    Usually that is ``base_model``; in OPT the decoder inside it, in composite models the text
    model.
    """
    from transformers import PreTrainedModel

    base = outer
    around = outer
    steps = pattern.removeprefix(_path_of(model, outer)).partition(".*")[0].strip(".")
    for name in steps.split("."):
        around = getattr(around, name)
        if isinstance(around, PreTrainedModel):
            takes = inspect.signature(type(around).forward).parameters
            base = around if "input_ids" in takes else base
    return base


def _find_blocks(
    base: Any, config: Any, family: Family, kind: str
) -> tuple[str, tuple[nn.Module, ...]]:
    lists = {name: m for name, m in base.named_modules() if isinstance(m, nn.ModuleList)}
    if isinstance(family.blocks, str):
        if family.blocks not in lists:
            raise UnsupportedModelError(
                f"the family registered for {kind!r} says the blocks are at {family.blocks!r}, "
                f"which is no ModuleList of {type(base).__name__}; it has {_listed(lists)}"
            )
        return family.blocks, tuple(lists[family.blocks])
    depths = [n for key in _DEPTH_NAMES if (n := getattr(config, key, None))]
    lengths = {len(m) for m in lists.values()}
    depth = next((n for n in depths if n in lengths), depths[0] if depths else None)
    fitting = {name: m for name, m in lists.items() if len(m) == depth}
    outermost = {
        name: m
        for name, m in fitting.items()
        if not any(name.startswith(other + ".") for other in fitting)
    }
    if len(outermost) > 1:
        alike = {n: m for n, m in outermost.items() if len({type(block) for block in m}) == 1}
        outermost = alike or outermost
    if len(outermost) != 1:
        raise UnsupportedModelError(
            f"check 'blocks' failed for {kind!r}: expected one ModuleList of {depth} blocks in "
            f"{type(base).__name__}, found {_listed(outermost or lists)}; say where they are with "
            f"actstore.models.register_family(Family({kind!r}, blocks='path.to.list'))"
        )
    name, blocks = next(iter(outermost.items()))
    return name, tuple(blocks)


def _listed(lists: dict[str, nn.ModuleList]) -> str:
    return ", ".join(f"{name} ({len(m)})" for name, m in lists.items()) or "none"
