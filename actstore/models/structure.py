"""Find the module that runs the blocks, and the blocks, from a model's structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from actstore.errors import UnsupportedModelError
from actstore.models.families import Family, family_of

_DEPTH_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")


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
    """

    base: nn.Module
    base_path: str
    blocks: tuple[nn.Module, ...]
    pattern: str


def find_stack(model: Any) -> Stack:
    """Return the stack of a transformers model.

    Raises
    ------
    UnsupportedModelError
        No ``ModuleList``, or more than one, is as long as the configuration's number of layers.
    """
    family = family_of(model.config.model_type)
    base = _find_base(model, family)
    config = getattr(base, "config", model.config).get_text_config()
    base_path = next(name for name, module in model.named_modules() if module is base)
    if callable(family.blocks):
        found, inner = family.blocks(base, config)
        blocks = tuple(found)
    else:
        inner, blocks = _find_blocks(base, config, family)
        inner += ".*"
    return Stack(base, base_path, blocks, f"{base_path}.{inner}".lstrip("."))


def input_embedding(model: Any, stack: Stack) -> Any:
    """The module that turns token ids into vectors."""
    holder: Any = stack.base if hasattr(stack.base, "get_input_embeddings") else model
    return holder.get_input_embeddings()


def _find_base(model: Any, family: Family) -> nn.Module:
    if family.base is not None:
        return model.base_model.get_submodule(family.base)
    if model.config.is_encoder_decoder:
        return model.get_encoder()
    return model.base_model


def _find_blocks(base: nn.Module, config: Any, family: Family) -> tuple[str, tuple[nn.Module, ...]]:
    kind = config.model_type
    lists = {name: m for name, m in base.named_modules() if isinstance(m, nn.ModuleList)}
    if isinstance(family.blocks, str):
        if family.blocks not in lists:
            raise UnsupportedModelError(
                f"the family registered for {kind!r} says the blocks are at {family.blocks!r}, "
                f"which is no ModuleList of {type(base).__name__}; it has {_listed(lists)}"
            )
        return family.blocks, tuple(lists[family.blocks])
    depth = next((n for key in _DEPTH_NAMES if (n := getattr(config, key, None))), None)
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
