"""Models some of whose blocks are linear maps, as classes that transformers saves and loads.

`LinearBlock` stands in a block's place. `LinearBlocksLlamaForCausalLM` (and so on, for each of
`FAMILIES`) is the family's own class with such blocks where its configuration's
``linear_blocks`` says; only ``import analysis.pruning`` is needed for
``AutoModelForCausalLM.from_pretrained`` to load one that was saved. Where that was not imported,
transformers refuses the folder by its ``model_type`` instead of filling in random weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import nn

from actstore.errors import ModelError
from actstore.models.structure import find_stack

FAMILIES = {
    "gemma": "Gemma",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNeoX",
    "granite": "Granite",
    "llama": "Llama",
    "mistral": "Mistral",
    "opt": "OPT",
    "phi3": "Phi3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "stablelm": "StableLm",
    "starcoder2": "Starcoder2",
}
"""model_type → how its classes are called: the families whose blocks can be taken out."""

PREFIX = "linear_blocks_"


class LinearBlock(nn.Module):
    """y = x A (+ b) in the place of a transformer block, at each position by itself.

    Parameters
    ----------
    width : int
    bias : bool

    Attributes
    ----------
    linear : nn.Linear
        ``linear.weight`` is Aᵀ.
    """

    def __init__(self, width: int, bias: bool) -> None:
        # not super(): what else a subclass is, a block of its family, is not to be built
        nn.Module.__init__(self)
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """The stream behind the block, (batch, time, width); masks and caches are not needed."""
        states: torch.Tensor = self.linear(hidden_states)
        return states


def family(config: Any) -> str:
    """The model_type of the family, of a model with or without linear blocks.

    Raises
    ------
    ModelError
        The family's blocks cannot be taken out here, or are not all alike.
    """
    kind: str = config.model_type.removeprefix(PREFIX)
    if kind not in FAMILIES:
        raise ModelError(
            f"blocks of {kind!r} cannot be removed or replaced; those of "
            f"{', '.join(sorted(FAMILIES))} can"
        )
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if len(kinds) > 1:
        raise ModelError(
            f"this {kind!r} model mixes blocks of {' and '.join(kinds)}; blocks can be removed or "
            "replaced only where all attend alike"
        )
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise ModelError(
            f"this {kind!r} model scales attention by the block's number "
            "(scale_attn_by_inverse_layer_idx), which changes where blocks are taken out"
        )
    return kind


def blocks_of(model: Any) -> nn.ModuleList:
    """The list of blocks inside a transformers model, to be changed in place."""
    found = model.get_submodule(find_stack(model).pattern.removesuffix(".*"))
    assert isinstance(found, nn.ModuleList)
    return found


def linear_blocks(model: Any) -> dict[int, LinearBlock]:
    """The linear blocks of a model, by block."""
    return {
        number: block
        for number, block in enumerate(blocks_of(model))
        if isinstance(block, LinearBlock)
    }


def number_caches(blocks: nn.ModuleList) -> None:
    """Give the blocks that attend the numbers 0, 1, 2…: their places in a key/value cache.

    A cache tells the length of what was seen by its place 0.
    """
    place = 0
    for block in blocks:
        if isinstance(block, LinearBlock):
            continue
        for module in block.modules():
            if hasattr(module, "layer_idx"):
                module.__dict__["layer_idx"] = place
        place += 1


def with_linear_blocks(model: Any, maps: Mapping[int, tuple[torch.Tensor, Any]]) -> Any:
    """A model with the same weights and linear maps in the place of some blocks.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Of one of `FAMILIES`. It must not be used afterwards: its blocks move to the new one.
    maps : mapping of block to ((width, width) matrix Aᵀ, (width,) bias or None)
        All with a bias or all without.

    Returns
    -------
    transformers.PreTrainedModel
        Of the family's class with linear blocks.
    """
    kind = family(model.config)
    config_class, model_class = _CLASSES[kind]
    biases = {bias is not None for _, bias in maps.values()}
    assert len(biases) == 1
    record = model.config.to_dict()
    for key in ("model_type", "architectures", "transformers_version"):
        record.pop(key, None)
    record |= {"linear_blocks": sorted(maps), "linear_bias": biases.pop()}
    config = config_class(**record)
    config._attn_implementation = model.config._attn_implementation
    with torch.device("meta"):
        made = model_class(config)
    blocks = blocks_of(model)
    for number, block in linear_blocks(made).items():
        weight, bias = maps[number]
        block.linear.weight = nn.Parameter(weight)
        if bias is not None:
            block.linear.bias = nn.Parameter(bias)
        blocks[number] = block
    made.__dict__["_modules"] = model._modules
    made.generation_config = model.generation_config
    for module in made.modules():
        if hasattr(module, "config") and module.config is model.config:
            module.config = config
    number_caches(blocks_of(made))
    return made.train(model.training)


def install(model: Any, numbers: Sequence[int], bias: bool) -> None:
    """Put fresh linear blocks in a model's list of blocks, and number the others' caches."""
    blocks = blocks_of(model)
    for number in numbers:
        kind = _linear_kind(type(blocks[number]))
        blocks[number] = kind(model.config.get_text_config().hidden_size, bias)
    number_caches(blocks)


_KINDS: dict[type, type[LinearBlock]] = {}


def _linear_kind(block: type) -> type[LinearBlock]:
    """`LinearBlock` that is also a block of the family, so that its output is among the
    ``hidden_states`` which transformers collects by the block's class."""
    if block not in _KINDS:
        _KINDS[block] = type(f"Linear{block.__name__}", (LinearBlock, block), {})
    return _KINDS[block]


def _classes(kind: str, name: str) -> tuple[Any, Any]:
    config_class: Any = getattr(transformers, f"{name}Config")
    model_class: Any = transformers.AutoModelForCausalLM._model_mapping[config_class]

    class Config(config_class):
        model_type = PREFIX + kind

        def __init__(
            self, linear_blocks: Sequence[int] = (), linear_bias: bool = True, **kwargs: Any
        ) -> None:
            super().__init__(**kwargs)
            self.linear_blocks = list(linear_blocks)
            self.linear_bias = linear_bias

    Config.__name__ = Config.__qualname__ = f"LinearBlocks{config_class.__name__}"

    class Model(model_class):
        config_class = Config

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            install(self, config.linear_blocks, config.linear_bias)

    Model.__name__ = Model.__qualname__ = f"LinearBlocks{model_class.__name__}"
    transformers.AutoConfig.register(Config.model_type, Config)
    transformers.AutoModelForCausalLM.register(Config, Model)
    return Config, Model


_CLASSES = {kind: _classes(kind, name) for kind, name in FAMILIES.items()}
