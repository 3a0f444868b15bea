"""What structure alone cannot tell about an architecture, as data.

Blocks, norms, sites and heads are found by what they do (see `structure` and `sites`). An
entry here is needed only where that fails: several stacks of blocks in one model, or one
block called many times. A user adds an entry with `register_family`, without touching this
package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Family:
    """How to find the blocks of the models of one ``config.model_type``.

    Attributes
    ----------
    model_type : str
        ``config.model_type`` of the models it is for.
    base : str, optional
        Path, inside ``model.base_model``, of the module whose forward pass runs the blocks on
        ``input_ids`` and whose output the head is given ("" for that model itself); default:
        the innermost model around the blocks, in the encoder of an encoder-decoder.
    blocks : str or callable, optional
        Path of the ``ModuleList`` of blocks, inside ``base`` or else ``model.base_model``; or a
        function ``(that module, config) -> (blocks in the order they run, path pattern)``,
        where a block may come more than once. Default: the one list of the right length.
    """

    model_type: str
    base: str | None = None
    blocks: str | Callable[[Any, Any], tuple[Sequence[nn.Module], str]] | None = None


def _albert_blocks(base: Any, config: Any) -> tuple[Sequence[nn.Module], str]:
    """ALBERT runs ``num_hidden_groups`` groups of layers, each several times in a row."""
    groups = base.encoder.albert_layer_groups
    per_group = config.num_hidden_layers / config.num_hidden_groups
    order = [groups[int(i / per_group)] for i in range(config.num_hidden_layers)]
    return order, "encoder.albert_layer_groups.*"


_FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (Family("albert", blocks=_albert_blocks),)
}


def register_family(family: Family) -> None:
    """Teach `load_model` an architecture whose blocks it does not find by itself.

    The load-time checks still apply: an entry that names the wrong modules is refused.
    """
    _FAMILIES[family.model_type] = family


def family_of(model_type: str) -> Family:
    """Return the registered entry of a model type, or an empty one."""
    return _FAMILIES.get(model_type, Family(model_type))
