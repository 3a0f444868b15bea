"""Blocks taken out of a model, or replaced by linear maps; the model given is left untouched."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from actstore.errors import AnalysisError
from analysis.pruning.modules import (
    LinearBlock,
    blocks_of,
    family,
    linear_blocks,
    number_caches,
    with_linear_blocks,
)

if TYPE_CHECKING:
    from actstore.fitting import LinearMap
    from actstore.models import LanguageModel


def remove(model: LanguageModel | Any, blocks: Iterable[int]) -> Any:
    """A copy of the model without some of its blocks.

    "Your Transformer is Secretly Linear" (arXiv 2405.12250) §4: what entered a removed block
    enters the next one. Whatever loads the original loads this one, with plain transformers too:
    the configuration tells the new depth, and the blocks left are numbered anew, also in the
    key/value cache.

    Parameters
    ----------
    model : LanguageModel or transformers.PreTrainedModel
        Of one of the families in `analysis.pruning.FAMILIES`.
    blocks : iterable of int
        Blocks of this model, 0…L−1, in any order.

    Returns
    -------
    transformers.PreTrainedModel
        Of the same class, in evaluation mode, sharing no memory with the original.

    Raises
    ------
    ModelError
        Another family, or blocks that are not alike.
    AnalysisError
        Blocks that the model does not have, or all of them.
    """
    made = _copied(model)
    layers = blocks_of(made)
    gone = checked_blocks(blocks, len(layers))
    kept = [number for number in range(len(layers)) if number not in gone]
    if all(isinstance(layers[number], LinearBlock) for number in kept):
        raise AnalysisError(
            f"removing {sorted(gone)} leaves no block that attends; leave one of {len(layers)}"
        )
    config = made.config
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[number] for number in kept]
    for number in sorted(gone, reverse=True):
        del layers[number]
    config.num_hidden_layers = len(kept)
    if linear := linear_blocks(made):
        config.linear_blocks = sorted(linear)
    number_caches(layers)
    return made


def replace(model: LanguageModel | Any, maps: Mapping[int, LinearMap]) -> Any:
    """A copy of the model with fitted linear maps in the place of some blocks, y = x A (+ b).

    Parameters
    ----------
    model : LanguageModel or transformers.PreTrainedModel
        As for `remove`, without linear blocks so far.
    maps : mapping of block to LinearMap
        For block b a map from layer b to layer b + 1, such as `fit_maps` gives.

    Returns
    -------
    transformers.PreTrainedModel
        Of a class with `LinearBlock`; saved by ``save_pretrained``, loaded by
        ``AutoModelForCausalLM.from_pretrained`` once ``analysis.pruning`` is imported. Without
        any map: a plain copy.

    Raises
    ------
    ModelError, AnalysisError
        As for `remove`; a map of another width.
    """
    made = _copied(model)
    layers = blocks_of(made)
    chosen = checked_blocks(maps, len(layers))
    if not chosen:
        return made
    if linear_blocks(made):
        raise AnalysisError(
            f"blocks {sorted(linear_blocks(made))} are linear already; replace all at once in the "
            "original model"
        )
    if len(chosen) == len(layers):
        raise AnalysisError(f"all {len(layers)} blocks would be replaced; leave one that attends")
    weight = next(made.parameters())
    found = {}
    biased = any(linear.bias is not None for linear in maps.values())
    for block, linear in maps.items():
        width = made.config.hidden_size
        if linear.matrix.shape != (width, width):
            raise AnalysisError(
                f"the map for block {block} is {linear.matrix.shape}, but the stream has {width} "
                "features"
            )
        bias = linear.bias
        if bias is None and biased:
            bias = np.zeros(width)
        found[block % len(layers)] = (
            torch.tensor(linear.matrix.T.copy(), dtype=weight.dtype, device=weight.device),
            None if bias is None else torch.tensor(bias, dtype=weight.dtype, device=weight.device),
        )
    return with_linear_blocks(made, found)


def checked_blocks(blocks: Iterable[int], depth: int) -> set[int]:
    """The blocks as a set.

    Raises
    ------
    AnalysisError
        A block named twice, or one that the model does not have.
    """
    listed = [int(block) for block in blocks]
    outside = [block for block in listed if not 0 <= block < depth]
    if outside:
        raise AnalysisError(f"block {outside[0]} asked for, but the model has blocks 0…{depth - 1}")
    if len(set(listed)) < len(listed):
        raise AnalysisError(f"blocks {listed}: one is named twice")
    return set(listed)


def _copied(model: Any) -> Any:
    plain = getattr(model, "model", model) if hasattr(model, "exclusive") else model
    family(plain.config)
    return copy.deepcopy(plain).eval()
